//! A step laid out in time, as the JSON that Perfetto and Chrome's own viewer open ("Trace Event Format"):
//! a process for every stage, a thread for each of its rows. Times are microseconds with three digits
//! behind the point, rounded where slices begin and end so that neighbours stay neighbours; `args.seconds`
//! has all digits.

use cost::trace::{Detail, Slice, Trace, Track, What};
use layout::order::{Action, Block, Pass};
use serde_json::{Map, Value, json};

/// Bytes of one slice as written here, at most.
const SLICE_BYTES: usize = 210;

/// Slices that are written at most: a file both viewers open without waiting.
pub const MOST_SLICES: usize = (20 << 20) / SLICE_BYTES;

/// The file. `job` is the job as typed; ranks of one stage and chunks of one are said in names.
pub fn json(trace: &Trace, job: &str, ranks_per_stage: u64, has_chunks: bool) -> String {
    let mut events: Vec<String> = Vec::new();
    let mut rows: Vec<(u32, Track)> = trace.slices.iter().map(|slice| (slice.stage, slice.track)).collect();
    rows.sort_unstable();
    rows.dedup();
    for stage in 0..trace.stages.len() as u64 {
        let name = match ranks_per_stage {
            1 => format!("stage {stage} (rank {stage})"),
            ranks => format!("stage {stage} (ranks {}-{})", stage * ranks, (stage + 1) * ranks - 1),
        };
        events.push(named("process_name", stage as u32, 0, json!({ "name": name })));
        events.push(named("process_sort_index", stage as u32, 0, json!({ "sort_index": stage })));
    }
    for (stage, track) in rows {
        let id = thread(track);
        events.push(named("thread_name", stage, id, json!({ "name": row_name(track) })));
        events.push(named("thread_sort_index", stage, id, json!({ "sort_index": id })));
    }
    let mut slices: Vec<&Slice> = trace.slices.iter().collect();
    slices.sort_by(|a, b| {
        let key = |s: &Slice| (s.stage, s.track);
        key(a).cmp(&key(b)).then(a.start.total_cmp(&b.start))
    });
    let (mut row, mut end) = ((u32::MAX, Track::Schedule), 0);
    for slice in slices {
        let mut start = nanoseconds(slice.start);
        if row == (slice.stage, slice.track) && start.abs_diff(end) <= 1 {
            // Neighbours that rounding drew apart.
            start = end;
        }
        row = (slice.stage, slice.track);
        end = nanoseconds(slice.start + slice.seconds).max(start);
        events.push(slice_json(trace, slice, [start, end], has_chunks));
    }
    let about = json!({
        "job": job, "step_seconds": trace.seconds, "stages": trace.stages, "drawn": drawn(trace.detail),
        "producer": concat!("shardwright ", env!("CARGO_PKG_VERSION")),
    });
    let events = events.join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n{events}\n]}}\n")
}

/// How much of the step is drawn, in words.
pub fn drawn(detail: Detail) -> String {
    match detail {
        Detail::Whole => "every pass, in parts".to_string(),
        Detail::Plain { edge } => format!(
            "every pass; the first and last {edge} of a stage in parts, because more would make the file too large"
        ),
        Detail::Folded { edge } => format!(
            "the first and last {edge} passes of a stage, in parts; those between are one slice with their sums, \
             because more would make the file too large"
        ),
    }
}

fn named(what: &str, process: u32, thread: u32, args: Value) -> String {
    json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": args }).to_string()
}

fn thread(track: Track) -> u32 {
    match track {
        Track::Schedule => 0,
        Track::Compute => 1,
        Track::Host => 2,
        Track::Axis(axis) => 3 + ["tp", "cp", "ep", "dp", "pp"].iter().position(|a| *a == axis).unwrap_or(5) as u32,
        Track::Sends(lane) => 10 + lane,
    }
}

fn row_name(track: Track) -> String {
    match track {
        Track::Schedule => "schedule".to_string(),
        Track::Compute => "compute".to_string(),
        Track::Host => "host".to_string(),
        Track::Axis(axis) => format!("{axis} collectives"),
        Track::Sends(0) => "sends".to_string(),
        Track::Sends(lane) => format!("sends, at the same time ({lane})"),
    }
}

/// Whole nanoseconds from the start of the step.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// Microseconds with three digits.
fn microseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

fn slice_json(trace: &Trace, slice: &Slice, [start, end]: [u64; 2], has_chunks: bool) -> String {
    let (name, category, mut args) = words(slice.what, has_chunks);
    args.insert("seconds".to_string(), json!(slice.seconds));
    if let Some(bytes) = slice.bytes {
        args.insert("bytes".to_string(), json!(bytes.round() as u64));
    }
    args.insert("basis".to_string(), json!(trace.basis(slice).word()));
    format!(
        r#"{{"ph":"X","name":{},"cat":"{category}","pid":{},"tid":{},"ts":{},"dur":{},"args":{}}}"#,
        json!(name),
        slice.stage,
        thread(slice.track),
        microseconds(start),
        microseconds(end - start),
        Value::Object(args)
    )
}

/// What a slice is called, its category, and what else is said of it.
fn words(what: What, has_chunks: bool) -> (String, &'static str, Map<String, Value>) {
    let said = |value: Value| value.as_object().cloned().unwrap_or_default();
    let hidden = |name: &str| format!("{} hidden", name.trim_end_matches(" exposed"));
    match what {
        What::Block(block) => {
            let names: Vec<String> = block.actions().map(|action| pass_name(action, has_chunks)).collect();
            (names.join(" + "), "pass", said(block_json(block)))
        }
        What::Wait(Some(stage)) => ("wait".to_string(), "wait", said(json!({ "for": format!("stage {stage}") }))),
        What::Wait(None) => ("wait".to_string(), "wait", said(json!({ "for": "the last stage to end" }))),
        What::WaitForUpdate => ("wait for the update".to_string(), "update", Map::new()),
        What::Sending => ("send".to_string(), "send", Map::new()),
        What::Folded(folded) => {
            let (busy, idle, sending) = (folded.busy, folded.idle, folded.sending);
            let sums = json!({ "passes": folded.blocks, "busy": busy, "idle": idle, "sending": sending });
            (format!("{} passes", folded.blocks), "folded", said(sums))
        }
        What::Part(part) => (part.name().to_string(), "part", Map::new()),
        What::Again(part) => (format!("recompute: {}", part.name()), "part", Map::new()),
        What::Hidden(part) => (hidden(part.name()), "hidden", Map::new()),
        What::Transfer { action, to } => {
            (format!("{} to stage {to}", pass_name(action, has_chunks)), "transfer", Map::new())
        }
        What::Line("reserve") => ("reserve".to_string(), "reserve", Map::new()),
        What::Line(line) => (line.to_string(), "part", Map::new()),
        What::HiddenLine(line) => (hidden(line), "hidden", Map::new()),
        What::Update => ("update".to_string(), "update", Map::new()),
    }
}

fn pass_name(action: Action, has_chunks: bool) -> String {
    let pass = match action.pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
        Pass::BackwardInput => "backward of inputs",
        Pass::BackwardWeight => "backward of weights",
    };
    let chunk = if has_chunks { format!(" chunk {}", action.chunk) } else { String::new() };
    format!("{pass} {}{chunk}", action.microbatch)
}

fn block_json(block: Block) -> Value {
    let one = |action: Action| json!({ "microbatch": action.microbatch, "chunk": action.chunk });
    match block {
        Block::Alone(action) => one(action),
        Block::Overlapped { forward, backward } => json!({ "forward": one(forward), "backward": one(backward) }),
    }
}
