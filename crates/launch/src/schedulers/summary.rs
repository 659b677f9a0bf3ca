//! What a node leaves behind: a small JSON file in the launch's log folder, written when the script
//! begins and again when it ends, however it ends. A run that was killed outright (SIGKILL, power)
//! leaves the first: its state is `running`. Earlier runs of the same launch keep theirs, numbered. Node 0 then has
//! `shardwright` record the receipt, where there is one.

use crate::identity::Identity;
use crate::job::Job;
use diag::quote;

/// Which node this is, as a number: it becomes part of names.
pub fn node_rank() -> String {
    "case $NODE_RANK in '' | *[!0-9]*) printf 'NODE_RANK is no number: %s\\n' \"$NODE_RANK\" >&2; exit 1 ;; esac\n\
     node=node$NODE_RANK\n"
        .to_string()
}

/// The functions that write it, and its first version.
pub fn begin(job: &Job) -> String {
    let identity = Identity::of(job);
    // A value of JSON as one word of the shell, which prints it as it is.
    let json = |text: &str| quote::shell(&quote::json(text));
    format!(
        r#"# What this node leaves behind, however it ends.
summary=$SHARDWRIGHT_LOGS/summary-$node.json
log=$SHARDWRIGHT_LOGS/$node.log
restarts=0
while [ -e "${{summary%.json}}.$restarts.json" ]; do restarts=$((restarts + 1)); done
if [ -e "$summary" ]; then mv -- "$summary" "${{summary%.json}}.$restarts.json"; restarts=$((restarts + 1)); fi
touch -- "$log"
first=$(($(wc -l < "$log") + 1))
started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
host=$(uname -n | tr -cd 'A-Za-z0-9._-')
state=refused signal=null ended=null status=null cause=null child=
write_summary() {{
  # torchrun keeps a folder for every attempt of its own.
  attempts=$( (find "$SHARDWRIGHT_LOGS/torchrun" -mindepth 2 -maxdepth 2 -name 'attempt_[1-9]*' -newer "$log.began" 2>/dev/null || true) | wc -l)
  printf '{{"schema": "shardwright/summary/1", "launch_id": %s, "job_name": %s, "recipe": %s, "mode": %s, "engine": %s, ' \
    {launch_id} {job_name} {recipe} {mode} {engine} > "$summary.new"
  printf '"node": %s, "host": "%s", "state": "%s", "exit_status": %s, "signal": %s, "started": "%s", "ended": %s, ' \
    "$NODE_RANK" "$host" "$state" "$status" "$signal" "$started" "$ended" >> "$summary.new"
  printf '"restarts": %s, "engine_restarts": %s, "log": {{"folder": %s, "file": "%s", "first_line": %s, "last_line": %s}}, ' \
    "$restarts" "$attempts" {log} "$node.log" "$first" "$(wc -l < "$log")" >> "$summary.new"
  printf '"cause": %s, "checkpoints": %s}}\n' "$cause" {checkpoints} >> "$summary.new"
  mv -- "$summary.new" "$summary"
}}
# A kind and lines: what stops this before the engine starts is in the log and in the summary too.
refuse() {{
  printf '%s\n' "${{@:2}}" | tee -a -- "$log" >&2
  cause=$("$python" "$here/cause.py" --refused "$@" 2>/dev/null || printf null)
  exit 1
}}
finish() {{
  status=$?
  ended="\"$(date -u +%Y-%m-%dT%H:%M:%SZ)\""
  if [ "$state" = running ]; then if [ "$status" = 0 ]; then state=finished; else state=failed; fi; fi
  if [ "$signal" != null ]; then state=stopped; fi
  if [ "$state" = failed ]; then cause=$("$python" "$here/cause.py" "$log" "$first" 2>/dev/null || printf null); fi
  write_summary
  sync -- "$summary" 2>/dev/null || true
  rm -f -- "$log.began"
  if [ "$state" != refused ] && [ "$NODE_RANK" = 0 ]; then record_receipt || true; fi
}}
# Says in five lines what came of the run against what was promised, and keeps it. The run has ended as it ended,
# whether this works or not.
record_receipt() {{
  program=${{SHARDWRIGHT:-shardwright}}
  if [ -e "$here/launch.json" ] && command -v -- "$program" >/dev/null 2>&1; then
    if "$program" receipt record "$here"; then return; fi
  fi
  if [ "$state" = failed ]; then "$python" "$here/cause.py" "$log" "$first" --say >&2 || true; fi
  printf 'no receipt was recorded; %s stands. In the launch directory, where shardwright is and that can be read:\n' "$summary" >&2
  printf '  shardwright receipt record .\n' >&2
}}
touch -- "$log.began"
trap finish EXIT
"#,
        launch_id = json(&identity.launch_id),
        job_name = json(&identity.job_name),
        recipe = json(job.source.name.raw()),
        mode = job.layout.mode.map_or("null".to_string(), |mode| json(mode.name())),
        engine = json(crate::engines::engine_of(job).name()),
        log = json(&job.logs()),
        checkpoints = json(&job.checkpoints()),
    )
}

/// Runs the engine beside the shell, which passes signals on and waits until it has ended. SIGINT goes
/// on as SIGTERM, since a shell starts what runs beside it with SIGINT ignored.
pub fn run(is_watched: bool) -> String {
    let watch = r#"# Ends a job that raised the same twice before its first step: torchrun would start it again and again.
"$python" "$here/cause.py" "$log" "$first" --watch "$child" 3>&- 4>&- &
watcher=$!
"#;
    RUN.replace("# watch\n", if is_watched { watch } else { "" })
}

const RUN: &str = r#"stop() {
  signal="\"$1\""
  if [ -n "$child" ]; then kill -s "$2" "$child" 2>/dev/null || true; fi
}
trap 'stop TERM TERM' TERM
trap 'stop INT TERM' INT
trap 'stop HUP HUP' HUP
# Everything that is printed is kept; what keeps it outlives the signals that end the run.
exec 3>&1 4>&2 > >(trap '' TERM INT HUP; exec tee -a -- "$log") 2>&1
tee=$!
state=running
write_summary
engine 3>&- 4>&- &
child=$!
# watch
ended_with=0
wait "$child" || ended_with=$?
# A signal ends the wait before the engine has ended.
while kill -0 "$child" 2>/dev/null; do
  ended_with=0
  wait "$child" || ended_with=$?
done
if [ -n "${watcher:-}" ]; then kill "$watcher" 2>/dev/null || true; fi
exec 1>&3 2>&4 3>&- 4>&-
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$tee" 2>/dev/null || break; sleep 0.2; done
exit "$ended_with"
"#;
