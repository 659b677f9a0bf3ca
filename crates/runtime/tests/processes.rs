//! The rows of the matrix that have four or eight ranks, with ranks as MPI processes: each holds what
//! it holds between threads, and comes to the same bits. By itself this starts `mpirun`; under it,
//! it is one of the ranks. Every process computes what one rank computes, which takes its time: of
//! the rows with several axes every third is held, or every one with the word `all`
//! (`cargo test … --test processes -- all`).

#[path = "all/matrix/rows.rs"]
mod rows;

use comm::{Comm, processes};
use diag::Finding;
use layout::LayoutRequest;
use recipe::Recipe;
use runtime::rehearse::{Number, Outcome, Ranks, Rehearsal, prepare, rehearse, rehearse_between};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Set by Open MPI's launcher for every process it starts.
const UNDER_MPIRUN: &str = "OMPI_COMM_WORLD_SIZE";

fn main() -> ExitCode {
    if std::env::var_os(UNDER_MPIRUN).is_some() {
        return rank();
    }
    let this = std::env::current_exe().expect("a test knows its file");
    for ranks in ["4", "8"] {
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", ranks]).arg(&this).args(std::env::args().skip(1));
        let status = mpirun.status().expect("mpirun starts");
        assert!(status.success(), "{ranks} processes: {status}");
    }
    ExitCode::SUCCESS
}

fn rank() -> ExitCode {
    let recipes = rows::recipes();
    let said = |finding: &Finding| eprintln!("{}: {}", finding.rule, finding.message);
    let result = processes::run(Duration::from_secs(120), said, |comm| {
        let mut held = 0;
        for (i, request) in rows::alone().iter().enumerate() {
            held += usize::from(hold(&recipes[i % 3], request, comm)?);
        }
        let fits = |(i, request): &(usize, LayoutRequest)| world(&recipes[i % 3], request) == Some(comm.world() as u64);
        let every = if std::env::args().any(|word| word == "all") { 1 } else { 6 };
        for (i, request) in rows::together().into_iter().enumerate().filter(fits).step_by(every) {
            held += usize::from(hold(&recipes[i % 3], &request, comm)?);
        }
        assert!(held > 0, "no layout has {} ranks", comm.world());
        if comm.rank() == 0 {
            println!(
                "{held} layouts of {} ranks: processes agree with one rank, and with threads bit by bit",
                comm.world()
            );
        }
        Ok(())
    });
    let Err(ended) = result else { return ExitCode::SUCCESS };
    if ended.speaks {
        let findings = ended.endings.iter().enumerate().flat_map(|(r, e)| e.findings.iter().map(move |f| (r, f)));
        findings.for_each(|(rank, f)| eprintln!("rank {rank}: {} [{}]", f.message, f.rule));
    }
    ExitCode::FAILURE
}

/// Ranks of a row.
fn world(recipe: &Recipe, request: &LayoutRequest) -> Option<u64> {
    let ask = rows::ask(recipe, request, Number::F64, Ranks::Mpi);
    prepare(&ask).ok().map(|prepared| prepared.layout.world)
}

/// Holds a row, if it has as many ranks as there are processes.
fn hold(recipe: &Recipe, request: &LayoutRequest, comm: &Comm) -> Result<bool, Vec<Finding>> {
    let ask = rows::ask(recipe, request, Number::F64, Ranks::Mpi);
    let prepared = prepare(&ask)?;
    if prepared.layout.world as usize != comm.world() {
        return Ok(false);
    }
    let what = format!("{} {}", recipe.name.terminal(), prepared.layout.all_flags());
    let Outcome::Ran(between) = rehearse_between(&ask, &prepared, comm, &|_| {})? else { return Ok(true) };
    rows::judge(&what, &between);
    let Outcome::Ran(threads) = rehearse(&ask, &prepared, &|_| {})? else { panic!("{what} ended") };
    let timeless = |r: Box<Rehearsal>| Rehearsal { seconds: (0.0, 0.0), ..*r };
    assert!(timeless(between) == timeless(threads), "{what}: processes and threads differ");
    Ok(true)
}
