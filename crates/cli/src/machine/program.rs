//! A program that is asked something: started with fixed words, read so far and no further, waited for so
//! long and no longer. It and everything it started are ended before the answer is used.

use launch::preflight::machine::Known;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take. A driver that hangs makes nvidia-smi hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that are read of its output; a node's devices take a few thousand.
const MOST: usize = 1 << 20;

/// How often to look whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// What a program prints, or why there is nothing.
pub fn ask(program: &str, words: &[&str]) -> Known<Vec<u8>> {
    ask_within(program, words, PATIENCE)
}

fn ask_within(program: &str, words: &[&str], patience: Duration) -> Known<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut group = Group::of(&mut command).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("there is no {program} here"),
        _ => format!("{program} cannot be started: {error}"),
    })?;
    let mut pipe = group.child.stdout.take().ok_or("it has no output")?;
    let (deadline, mut out) = (Instant::now() + patience, Vec::new());
    loop {
        // Asked first: what an ended program has printed is in the pipe, whoever else holds it open.
        let has_ended = group.has_ended();
        let has_closed = drain(&mut pipe, &mut out).map_err(|error| format!("{program} cannot be read: {error}"))?;
        match () {
            () if out.len() > MOST => return Err(format!("{program} printed more than {} MiB", MOST >> 20)),
            () if has_ended => break,
            () if Instant::now() >= deadline => {
                return Err(format!("{program} did not answer within {} s", patience.as_secs()));
            }
            () if has_closed => std::thread::sleep(PAUSE),
            () => wait(&pipe),
        }
    }
    match group.end() {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => Err(format!("{program} failed ({status})")),
        Err(error) => Err(format!("{program} cannot be waited for: {error}")),
    }
}

/// Reads what is there, up to one byte more than is taken; whether the pipe was closed.
fn drain(pipe: &mut ChildStdout, out: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 1 << 14];
    while out.len() <= MOST {
        if !is_readable(pipe, Duration::ZERO) {
            return Ok(false);
        }
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(bytes) => out.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Waits until there is something to read, or a moment.
fn wait(pipe: &ChildStdout) {
    is_readable(pipe, PAUSE);
}

/// Whether a read would not block.
fn is_readable(pipe: &ChildStdout, pause: Duration) -> bool {
    let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
    matches!(poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&pause)), Ok(1..))
}

/// A program with everything it started, as far as that stayed in its process group. None of it outlives
/// this value, but for what the kernel itself does not let go of.
struct Group {
    child: Child,
    /// Killed, and perhaps waited for: its number may be another's by now.
    is_over: bool,
}

impl Group {
    fn of(command: &mut Command) -> io::Result<Group> {
        command.process_group(0).spawn().map(|child| Group { child, is_over: false })
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Whether the program itself has ended. It is not waited for yet, so that its number stays its own.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.pid().is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Ends what still runs of it. A process that hangs in a driver takes no signal, and is left after a second.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(pid) = self.pid().filter(|_| !self.is_over) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.is_over = true;
        for _ in 0..100 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(PAUSE);
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Known<Vec<u8>> {
        ask_within("sh", &["-c", script], Duration::from_secs(2))
    }

    #[test]
    fn programs_answer_fail_or_are_missing() {
        assert_eq!(ask("echo", &["$(x)", "`y`"]).unwrap(), b"$(x) `y`\n");
        assert!(ask("false", &[]).unwrap_err().contains("failed"));
        assert_eq!(ask("no-such-program-here", &[]).unwrap_err(), "there is no no-such-program-here here");
        assert_eq!(shell("exec >&-; sleep 0.1").unwrap(), b"");
        let most = format!("head -c {MOST} /dev/zero");
        assert_eq!(shell(&most).unwrap().len(), MOST);
    }

    /// The numbers of processes that a script printed are gone, or become zombies of somebody else.
    fn check_gone(pids: &str) {
        for pid in pids.split_whitespace() {
            let gone = (0..200).any(|_| {
                std::thread::sleep(PAUSE);
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
                stat.is_err() || stat.is_ok_and(|text| text.contains(") Z"))
            });
            assert!(gone, "{pid} still runs");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_child_that_holds_the_output_open_is_ended() {
        let start = Instant::now();
        let out = shell("sleep 600 & echo $!").unwrap();
        assert!(start.elapsed() < Duration::from_secs(2));
        check_gone(std::str::from_utf8(&out).unwrap());
        let start = Instant::now();
        let left = std::env::temp_dir().join(format!("shardwright-program-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! $$ > {}; wait", left.display());
        assert_eq!(shell(&script).unwrap_err(), "sh did not answer within 2 s");
        assert!(start.elapsed() < Duration::from_secs(10));
        check_gone(&std::fs::read_to_string(&left).unwrap());
        std::fs::remove_file(left).unwrap();
    }

    #[test]
    fn output_without_end_is_cut_off() {
        let start = Instant::now();
        assert_eq!(shell("yes").unwrap_err(), "sh printed more than 1 MiB");
        assert_eq!(shell("yes & yes").unwrap_err(), "sh printed more than 1 MiB");
        assert!(start.elapsed() < Duration::from_secs(4));
    }
}
