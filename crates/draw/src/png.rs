//! A picture as pixels, with the fonts that are compiled in: the same bytes on every machine.

use crate::palette::resolved;
use crate::svg;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};
use std::sync::{Arc, LazyLock};

/// Latin letters of DejaVu Sans; `assets/LICENSE-DejaVu` is their licence.
static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(include_bytes!("../assets/DejaVuSans.ttf").to_vec());
    fonts.load_font_data(include_bytes!("../assets/DejaVuSans-Bold.ttf").to_vec());
    Arc::new(fonts)
});

/// Pixels of a picture's unit.
const SCALE: f32 = 2.0;

/// Pixels of a side at most: pictures that are taller are drawn smaller.
const MOST: f32 = 16_000.0;

/// A picture of ours as a PNG file.
pub fn png(picture: &str) -> Result<Vec<u8>, crate::Undrawn> {
    let failed = |what: String| crate::Undrawn(format!("the picture cannot be made a PNG: {what}"));
    let options = Options { fontdb: FONTS.clone(), font_family: svg::FAMILY.to_string(), ..Options::default() };
    let tree = Tree::from_str(&resolved(picture), &options).map_err(|error| failed(error.to_string()))?;
    let size = tree.size();
    let scale = SCALE.min(MOST / size.width().max(size.height()));
    let (width, height) = ((size.width() * scale).ceil() as u32, (size.height() * scale).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| failed("it has no size".to_string()))?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}
