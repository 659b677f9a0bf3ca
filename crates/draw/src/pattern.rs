//! The blocks of a model in depth, coloured by family, and its parameters by family and surface.

use crate::palette::{BLUE, Colour, FREE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, SOFT, VERMILION};
use crate::svg::{About, Anchor, Canvas, Font, width};
use crate::{Options, Undrawn};
use serde::Deserialize;
use serde_json::{Map, Value};
use units::count;

/// What is drawn of an answer of `params`.
#[derive(Deserialize)]
pub struct Params {
    recipe: String,
    pattern: String,
    depth: u64,
    layers: Vec<String>,
    mtp: Option<Mtp>,
    total: u64,
    active: u64,
    by_family: Map<String, Value>,
    by_surface: Map<String, Value>,
}

#[derive(Deserialize)]
struct Mtp {
    depth: u64,
    layer: String,
}

#[derive(Deserialize)]
struct Held {
    total: u64,
    active: u64,
}

/// A family's name and colour, by the letter of a block or the key of a count.
fn family(key: &str) -> (&'static str, Colour) {
    match key {
        "A" => ("attention", BLUE),
        "E" => ("experts", ORANGE),
        "M" => ("mamba", GREEN),
        "R" => ("recurrent", PURPLE),
        "G" => ("gated delta", VERMILION),
        "F" => ("dense mlp", SKY),
        _ => ("edges", GREY),
    }
}

/// The letters of a layer's blocks: `(AF)` is two, `[AM]` one of two mixers.
fn letters(layer: &str) -> Vec<char> {
    layer.chars().filter(char::is_ascii_uppercase).take(MOST_BLOCKS).collect()
}

/// Blocks of one layer that are drawn.
const MOST_BLOCKS: usize = 8;

/// Layers that are drawn one by one.
const MOST_LAYERS: usize = 1024;

/// Surfaces that have a row of their own.
const MOST_SURFACES: usize = 12;

/// Draws it.
pub fn draw(params: &Params, options: &Options) -> Result<String, Undrawn> {
    let mut canvas = Canvas::new(options);
    let title = format!("{}: {} layers, {} parameters", params.recipe, params.depth, count(params.total));
    let pattern = crate::svg::cut(&params.pattern, 12.0, canvas.width / 2.0);
    let said = format!("{pattern} to depth {}; {} parameters act on a token", params.depth, count(params.active));
    let soft = Font { fill: SOFT, ..Font::default() };
    let foot = canvas.heading(&title, &said);
    let y = strip(&mut canvas, params, foot + 16.0, options);
    let y = bars(&mut canvas, "Parameters by family", &families(params)?, params.total, y + 8.0, options);
    let y = bars(&mut canvas, "By surface", &surfaces(params)?, params.total, y + 8.0, options);
    let key = "filled: act on a token; outlined: experts that it is not routed to";
    let end = match params.active < params.total {
        true => canvas.paragraph(12.0, y + 14.0, soft, key, canvas.width - 24.0),
        false => y - 4.0,
    };
    Ok(canvas.finish(end + 14.0, &title, &said))
}

/// Layers from left to right, blocks of a layer from top to bottom; gives where it ends.
fn strip(canvas: &mut Canvas, params: &Params, top: f64, options: &Options) -> f64 {
    let room = canvas.width - 24.0;
    let layers = &params.layers[..params.layers.len().min(MOST_LAYERS)];
    let suffix = params.mtp.as_ref().map_or(0, |mtp| mtp.depth.min(16) as usize);
    let in_all = (layers.len() + suffix).max(1);
    let least = if options.narrow { 13.0 } else { 15.0 };
    let across = ((room / least) as usize).min(in_all.div_ceil(in_all.div_ceil((room / least) as usize)));
    // A row ends on a round number of layers where there are several.
    let across = if across < in_all && across > 8 { across - across % 4 } else { across };
    let wide = (room / across as f64).min(30.0);
    let stacked = layers.iter().chain(params.mtp.as_ref().map(|mtp| &mtp.layer));
    let blocks = stacked.map(|layer| letters(layer).len()).max().unwrap_or(1).max(1);
    let tall = 20.0;
    let pitch = blocks as f64 * tall + 30.0;
    for at in 0..in_all {
        let (x, y) = (12.0 + (at % across) as f64 * wide, top + (at / across) as f64 * pitch);
        let (layer, name) = match layers.get(at) {
            Some(layer) => (layer.as_str(), format!("layer {at}")),
            None => {
                let ahead = at - layers.len() + 1;
                (params.mtp.as_ref().map_or("", |mtp| mtp.layer.as_str()), format!("prediction head {ahead}"))
            }
        };
        for (row, letter) in letters(layer).into_iter().enumerate() {
            let key = letter.to_string();
            let (words, colour) = family(&key);
            let about = About::tip([format!("{name}: {letter}, {words}")]).data("layer", at).data("family", &key);
            let block = [x + 0.5, y + row as f64 * tall + 0.5, wide - 1.0, tall - 1.0];
            canvas.rect(block, colour.fill, &about);
            let font = Font { size: 11.0, anchor: Anchor::Middle, fill: colour.text, ..Font::default() };
            canvas.text(x + wide / 2.0, y + row as f64 * tall + tall / 2.0 + 4.0, font, &key);
        }
        if at >= layers.len() {
            let around = [x + 1.0, y + 1.0, wide - 2.0, letters(layer).len() as f64 * tall - 2.0];
            canvas.outline(around, INK, "2 2", &About::default());
        }
        let every = if wide < 20.0 { 8 } else { 4 };
        let foot = y + blocks as f64 * tall + 13.0;
        let tick = Font { size: 10.0, fill: SOFT, ..Font::default() };
        if at < layers.len() && at.is_multiple_of(every) {
            canvas.line([x + 1.0, foot - 12.0, x + 1.0, foot - 8.0], SOFT, 1.0, "");
            canvas.text(x + 1.0, foot, tick, &at.to_string());
        } else if at == layers.len() && suffix > 0 {
            let words = "MTP";
            let reach = canvas.width - 6.0 - width(words, 10.0);
            canvas.text(x.min(reach), foot, Font { fill: INK, ..tick }, words);
        }
    }
    top + in_all.div_ceil(across) as f64 * pitch
}

/// A row of a chart: name, colour, what is held and what acts on a token.
struct Row {
    name: String,
    colour: Colour,
    held: Held,
}

fn held(name: &str, value: &Value) -> Result<Held, Undrawn> {
    Held::deserialize(value).map_err(|error| Undrawn(format!("`{name}` of `params` is no count: {error}")))
}

fn families(params: &Params) -> Result<Vec<Row>, Undrawn> {
    let row = |(key, value): (&String, &Value)| {
        let (name, colour) = family(key);
        let name = if key == "edge" { name.to_string() } else { format!("{key} {name}") };
        Ok(Row { name, colour, held: held(key, value)? })
    };
    params.by_family.iter().map(row).collect()
}

/// The largest surfaces, and all others in one row.
fn surfaces(params: &Params) -> Result<Vec<Row>, Undrawn> {
    let row = |(key, value): (&String, &Value)| {
        Ok(Row { name: key.clone(), colour: surface_colour(key), held: held(key, value)? })
    };
    let mut rows: Vec<Row> = params.by_surface.iter().map(row).collect::<Result<_, Undrawn>>()?;
    rows.sort_by_key(|row| std::cmp::Reverse(row.held.total));
    if rows.len() > MOST_SURFACES {
        let rest = rows.split_off(MOST_SURFACES - 1);
        let sum = |of: fn(&Held) -> u64| rest.iter().map(|row| of(&row.held)).fold(0, u64::saturating_add);
        let held = Held { total: sum(|held| held.total), active: sum(|held| held.active) };
        rows.push(Row { name: format!("{} others", rest.len()), colour: GREY, held });
    }
    Ok(rows)
}

/// A surface has the colour of the family it mostly stands in.
fn surface_colour(surface: &str) -> Colour {
    let family_of = match surface {
        s if s.starts_with("attention") || s.starts_with("latent") || s.starts_with("indexer") => "A",
        s if s.contains("expert") || s.starts_with("router") => "E",
        s if s.starts_with("mixer") => "M",
        s if s.starts_with("mlp") || s.starts_with("dense") => "F",
        _ => "edge",
    };
    family(family_of).1
}

/// Bars against all parameters; gives where they end.
fn bars(canvas: &mut Canvas, head: &str, rows: &[Row], total: u64, top: f64, options: &Options) -> f64 {
    canvas.text(12.0, top + 12.0, Font { bold: true, ..Font::default() }, head);
    let (left, right) = if options.narrow { (126.0, 270.0) } else { (170.0, 840.0) };
    let most = rows.iter().map(|row| row.held.total).max().unwrap_or(0).max(1) as f64;
    let mut y = top + 20.0;
    for row in rows {
        let Held { total: here, active } = row.held;
        let share = format!("{:.1}%", 100.0 * here as f64 / total.max(1) as f64);
        let at = |number: u64| (right - left) * number as f64 / most;
        let about = About::tip([
            format!("{}: {} parameters, {share}", row.name, units::exact(here)),
            if active < here { format!("{} act on a token", units::exact(active)) } else { String::new() },
        ]);
        canvas.text_within(12.0, y + 12.0, Font::default(), &row.name, left - 18.0);
        canvas.rect([left, y, right - left, 16.0], FREE, &About::default());
        canvas.rect(
            [left, y, at(active.min(here)).max(if here > 0 { 1.0 } else { 0.0 }), 16.0],
            row.colour.fill,
            &about,
        );
        if active < here {
            canvas.outline([left + 0.75, y + 0.75, at(here) - 1.5, 14.5], row.colour.fill, "", &about);
        }
        let right_aligned = Font { anchor: Anchor::End, ..Font::default() };
        canvas.text(right + 58.0, y + 12.0, right_aligned, &count(here));
        canvas.text(right + 108.0, y + 12.0, Font { fill: SOFT, ..right_aligned }, &share);
        y += 20.0;
    }
    y
}
