//! A rehearsal whose ranks are MPI processes: one of them prints, and what only another knows is
//! told with that one's name.

use crate::args::RehearseArgs;
use crate::outcome::{Outcome, Refusal};
use comm::Comm;
use diag::{Blame, Finding};
use runtime::rehearse::Prepared;
use std::time::Duration;

/// Refuses a world of another size than the layout's.
pub(super) fn fits(comm: &Comm, prepared: &Prepared) -> Result<(), Finding> {
    let (world, wanted) = (comm.world(), prepared.layout.world as usize);
    if world == wanted {
        return Ok(());
    }
    let message = format!("mpirun started {world} processes, and the layout has {wanted} ranks");
    Err(Finding::error("rehearse/processes", Blame::Environment, "mpi", message)
        .hint(format!("mpirun -n {wanted} shardwright rehearse …")))
}

/// What a build without MPI says; `./test` builds with it where it can.
#[cfg(any(test, not(feature = "mpi")))]
fn absent() -> Finding {
    Finding::error("rehearse/processes", Blame::Environment, "mpi", "this build has no MPI")
        .hint("build with `--features mpi`, or leave --ranks out: threads run the same collectives")
}

#[cfg(not(feature = "mpi"))]
pub(super) fn run(_: &RehearseArgs, _: Result<Duration, Refusal>) -> Outcome {
    Err(absent().into())
}

#[cfg(feature = "mpi")]
pub(super) use with_mpi::run;

#[cfg(feature = "mpi")]
mod with_mpi {
    use super::super::{Begun, PATIENCE, clear_progress, ended as report, on_ranks};
    use super::*;
    use crate::outcome::{NO, Report};
    use comm::processes::{Ended, Ending};
    use runtime::rehearse::endings;
    use std::io::Write;
    use std::time::Instant;

    /// This process's part of the rehearsal.
    pub fn run(args: &RehearseArgs, deadline: Result<Duration, Refusal>) -> Outcome {
        let (since, mut begun, mut refusal) = (Instant::now(), None, None);
        let patience = *deadline.as_ref().unwrap_or(&Duration::from_secs_f64(PATIENCE));
        let ran = comm::processes::run(patience, last_words, |comm| {
            let outcome = deadline.and_then(|deadline| on_ranks(args, deadline, Some(comm), &mut begun));
            outcome.map_err(|why| refusal.insert(why).findings.clone())
        });
        ran.or_else(|ended| told(&ended, begun, refusal, since.elapsed().as_secs_f64()))
    }

    /// For a rank that the launcher ends while it computes.
    fn last_words(finding: &Finding) {
        let _ = write!(anstream::stderr(), "{}", diag::render(finding, None));
    }

    /// What the user is told of a run that failed, by the process that is to.
    fn told(ended: &Ended, begun: Option<Begun>, refusal: Option<Refusal>, seconds: f64) -> Outcome {
        clear_progress();
        if !ended.speaks {
            return Ok(Report { exit: NO, ..Report::default() });
        }
        let found_alone = |(rank, e): (usize, &Ending)| e.by == rank && e.findings == ended.endings[0].findings;
        let alike = ended.endings.iter().enumerate().all(found_alone);
        // Every process refuses before its first call: nothing went wrong between them.
        let refuses = alike && ended.endings[0].findings.iter().any(|f| f.blame == Blame::Engine);
        if let Some(refusal) = refusal.filter(|_| alike && (begun.is_none() || refuses)) {
            return Err(refusal);
        }
        let by_rank = ended.endings.iter().enumerate().flat_map(|(rank, e)| named(e).map(move |f| (rank, Some(f))));
        let endings = endings(&by_rank.collect::<Vec<_>>());
        match begun {
            Some(begun) => Ok(report(&begun, &endings, seconds)),
            None => Err(endings.into_iter().map(|e| e.finding).collect::<Vec<_>>().into()),
        }
    }

    /// An ending's findings, with the rank that found them. What went wrong between ranks names them
    /// already.
    fn named(ending: &Ending) -> impl Iterator<Item = Finding> + use<> {
        let by = ending.by;
        ending.findings.clone().into_iter().map(move |finding| match comm::names_ranks(&finding) {
            true => finding,
            false => Finding { message: format!("rank {by}: {}", finding.message), ..finding },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_mpi_says_what_to_build() {
        let finding = absent();
        assert_eq!(finding.blame, Blame::Environment);
        assert!(finding.hint.is_some_and(|hint| hint.contains("--features mpi")));
    }
}
