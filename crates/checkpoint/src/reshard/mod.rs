//! Writes a checkpoint again, for another layout or in another format. The source is verified first;
//! then bytes go from file to file through two buffers of [`BUFFER`] bytes, whatever the size of a tensor.
//! Besides them only names and boxes are held. No number is converted.

mod carry;
mod dcp;
mod own;
mod safetensors;

use crate::about::{About, Of, features};
use crate::cover;
use crate::files::failed;
use crate::folder::Fresh;
use crate::open::{Checkpoint, Layout, Tensor};
use crate::plan::Target;
use crate::reader::{BUFFER, Reader};
use crate::region::Region;
use crate::verify::{Against, verify};
use diag::{Blame, Finding};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use work::{Limit, Work};

/// What is to be done.
pub struct Job<'a> {
    /// The source.
    pub from: &'a Checkpoint,
    /// Who is to hold what.
    pub target: &'a Target<'a>,
    /// The format to write.
    pub layout: Layout,
    /// The new folder.
    pub out: &'a Path,
    /// The recipe it must be of, where one was given.
    pub against: Option<Against<'a>>,
    /// Bytes of each buffer.
    pub buffer: usize,
    /// How much of this machine planning may take. Copying is not counted: it is as long as the checkpoint.
    pub limit: Limit,
}

impl<'a> Job<'a> {
    /// With buffers of the usual size, and no limit.
    pub fn new(from: &'a Checkpoint, target: &'a Target<'a>, layout: Layout, out: &'a Path) -> Job<'a> {
        Job { from, target, layout, out, against: None, buffer: BUFFER, limit: Limit::none() }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Tensors.
    pub tensors: u64,
    /// Boxes of them.
    pub pieces: u64,
    /// Bytes of elements.
    pub bytes: u64,
    /// Files with tensors in them.
    pub files: u64,
    /// Bytes of the largest buffer that tensor data went through.
    pub largest_buffer: usize,
}

/// Operations of one rank's share of a tensor, and of a file that is made durable. Guesses from one reshard of
/// nam56r-mini for 4,096 ranks, 25 s on a busy machine; neither was timed by itself.
const SHARE: u64 = 5_000;
const FILE: u64 = 1_000_000;
/// Bytes that planning holds for a rank.
const RANK: u64 = 256;

/// What it takes to decide who writes what, and to write as many files.
fn planning(tensors: u64, world: u64) -> Work {
    let each = SHARE.saturating_mul(tensors).saturating_add(FILE);
    Work { bytes: RANK.saturating_mul(world), operations: each.saturating_mul(world) }
}

/// Refuses more ranks than the limit leaves time for, with how many it does.
fn within(job: &Job) -> Result<(), Vec<Finding>> {
    let (tensors, world) = (job.from.tensors.len() as u64, job.target.world());
    let fits = |world: u64| job.limit.check("", planning(tensors, world), "").is_ok();
    let most = (0..u64::BITS).map(|times| world >> times).take_while(|world| *world > 0).find(|world| fits(*world));
    let less = most.map_or(String::new(), |most| format!("{most} ranks would do"));
    let what = format!("writing {tensors} tensors for {world} ranks");
    job.limit.check(&what, planning(tensors, world), &less)
}

/// Verifies, copies, and names the new folder when all of it is durable.
pub fn reshard(job: &Job) -> Result<Copied, Vec<Finding>> {
    within(job)?;
    let findings = verify(job.from, job.against.as_ref());
    if !findings.is_empty() {
        return Err(findings);
    }
    carry::check(job)?;
    let plan = plan(job)?;
    let mut copy = Copy {
        job,
        about: about(job),
        reader: Reader::new(job.from, job.buffer),
        out: Vec::new(),
        fresh: Fresh::new(job.out).map_err(|f| vec![f])?,
        copied: Copied { tensors: plan.tensors, ..Copied::default() },
    };
    let written = match job.layout {
        Layout::Shardwright => own::write(&mut copy, &plan),
        Layout::Dcp => dcp::write(&mut copy, &plan),
        Layout::Safetensors => safetensors::write(&mut copy, &plan),
    };
    written.and_then(|()| copy.fresh.finish()).map_err(|f| vec![f])?;
    Ok(Copied { largest_buffer: copy.reader.files.largest.max(copy.out.capacity()), ..copy.copied })
}

/// One box to write.
struct Item<'a> {
    key: &'a str,
    tensor: &'a Tensor,
    at: Region,
}

impl Item<'_> {
    fn bytes(&self) -> u64 {
        self.at.elements() * self.tensor.dtype.bytes()
    }
}

/// Boxes by rank.
struct Plan<'a> {
    ranks: Vec<Vec<Item<'a>>>,
    tensors: u64,
}

/// Most elements of a piece of our own, which is read whole to be checked.
const OWN_PIECE: u64 = 1 << 18;
/// Most bytes of an archive's data, far from where zip needs other headers.
const DCP_PIECE: u64 = 1 << 30;

fn plan<'a>(job: &Job<'a>) -> Result<Plan<'a>, Vec<Finding>> {
    let mut plan = Plan { ranks: (0..job.target.world()).map(|_| Vec::new()).collect(), tensors: 0 };
    let mut findings = Vec::new();
    for (key, tensor) in job.from.tensors.iter().filter(|(key, _)| carry::keeps(job.layout, key)) {
        let boxes = match job.target.boxes(key, &tensor.shape) {
            Ok(boxes) => boxes,
            Err(finding) => {
                findings.push(finding);
                continue;
            }
        };
        let most = match job.layout {
            Layout::Shardwright => OWN_PIECE,
            Layout::Dcp => DCP_PIECE / tensor.dtype.bytes(),
            Layout::Safetensors => u64::MAX,
        };
        let pieces: Vec<(u64, Region)> =
            boxes.iter().flat_map(|(rank, b)| b.halves(most).into_iter().map(|piece| (*rank, piece))).collect();
        if let Err(flaw) = cover::check(&tensor.shape, &pieces.iter().map(|(_, b)| b).collect::<Vec<_>>()) {
            let message = format!("the layout's parts do not cover `{key}`: {flaw:?}");
            findings.push(Finding::error("checkpoint/coverage", Blame::Bug, key.as_str(), message));
            continue;
        }
        plan.tensors += 1;
        for (rank, at) in pieces {
            plan.ranks[rank as usize].push(Item { key, tensor, at });
        }
    }
    if findings.is_empty() { Ok(plan) } else { Err(findings) }
}

/// What the new checkpoint says of itself.
fn about(job: &Job) -> About {
    let mut about = job.from.about.clone();
    about.schema = crate::about::SCHEMA.to_string();
    about.world = Some(job.target.world());
    about.layout = None;
    if let Target::Layout { layout, .. } = job.target {
        about.layout = Some(layout.all_flags());
    }
    if let Some(against) = &job.against {
        about.recipe = Some(Of::new(against.recipe));
        about.features = Some(features(against.recipe));
        about.mode = against.mode.map(|m| m.name().to_string());
    }
    about
}

/// Why a write ended.
enum Failure {
    Io(io::Error),
    Found(Finding),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<Finding> for Failure {
    fn from(finding: Finding) -> Failure {
        Failure::Found(finding)
    }
}

/// A copy under way.
struct Copy<'j, 'a> {
    job: &'j Job<'a>,
    about: About,
    reader: Reader<'a>,
    out: Vec<u8>,
    fresh: Fresh,
    copied: Copied,
}

impl Copy<'_, '_> {
    /// Writes one box's bytes.
    fn body(&mut self, item: &Item, to: &mut dyn Write) -> Result<(), Failure> {
        self.copied.pieces += 1;
        self.copied.bytes += item.bytes();
        self.reader.region(item.tensor, &item.at, &mut self.out, |bytes| to.write_all(bytes).map_err(Failure::Io))
    }

    /// A file that `write` fills, made durable.
    fn file(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut Self, &mut BufWriter<File>) -> Result<(), Failure>,
    ) -> Result<(), Finding> {
        let (file, path): (File, PathBuf) = self.fresh.file(name)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        self.copied.files += 1;
        let written = write(self, &mut out).and_then(|()| {
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all().map_err(Failure::Io)
        });
        written.map_err(|failure| match failure {
            Failure::Found(finding) => finding,
            Failure::Io(error) => failed("write", &path, &error),
        })
    }

    /// `shardwright.json`.
    fn write_about(&mut self) -> Result<(), Finding> {
        self.fresh.write(crate::about::NAME, &self.about.to_json())
    }
}
