use super::*;
use crate::{Call, Op};

const SOON: Duration = Duration::from_millis(300);
const CALL: Call = Call::new("tp", "test");

fn everyone(comm: &Comm) -> Group {
    Group::new(0..comm.world())
}

fn all_ok<T: Send>(world: usize, body: impl Fn(&Comm) -> Result<T> + Sync) -> Vec<T> {
    run(world, Duration::from_secs(10), body).into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:?}"))).collect()
}

/// Every rank ends with a finding of this rule that holds each of these words.
fn all_fail<T: Send + std::fmt::Debug>(
    world: usize,
    rule: &str,
    words: &[&str],
    body: impl Fn(&Comm) -> Result<T> + Sync,
) {
    let begun = Instant::now();
    // Only who waits for a deadline should meet one, however busy the machine.
    let deadline = if rule == "comm/deadline" { SOON } else { Duration::from_secs(30) };
    for result in run(world, deadline, body) {
        let finding = result.expect_err("every rank must fail");
        assert_eq!(finding.rule, rule, "{}", finding.message);
        words.iter().for_each(|w| assert!(finding.message.contains(w), "`{w}` in {}", finding.message));
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn reductions_and_gathers_come_out() {
    for world in [1, 2, 3, 4] {
        let sums = all_ok(world, |comm| {
            let mine: Vec<f64> = (0..7).map(|i| (comm.rank() * 10 + i) as f64).collect();
            comm.all_reduce(&everyone(comm), CALL, Op::Sum, mine)
        });
        let expected: Vec<f64> = (0..7).map(|i| (0..world).map(|r| (r * 10 + i) as f64).sum()).collect();
        assert!(sums.iter().all(|s| *s == expected));
        let maxima = all_ok(world, |c| c.all_reduce(&everyone(c), CALL, Op::Max, vec![c.rank() as f32, 1.0]));
        assert!(maxima.iter().all(|m| *m == [(world - 1) as f32, 1.0]));
        let gathered = all_ok(world, |c| c.all_gather_uneven(&everyone(c), CALL, vec![c.rank() as u64; c.rank()]));
        assert!(gathered.iter().all(|(_, counts)| *counts == (0..world).collect::<Vec<_>>()));
        let shares = all_ok(world, |c| c.reduce_scatter(&everyone(c), CALL, vec![1.0f64; 2 * world]));
        assert!(shares.iter().all(|s| *s == [world as f64; 2]));
    }
}

#[test]
fn all_to_all_transposes_uneven_counts() {
    let out = all_ok(3, |comm| {
        let me = comm.rank();
        let send: Vec<usize> = (0..3).map(|to| me + to).collect();
        let values: Vec<u64> = (0..3).flat_map(|to| vec![(10 * me + to) as u64; me + to]).collect();
        comm.all_to_all(&everyone(comm), CALL, values, &send, &send)
    });
    assert_eq!(out[1], [1, 11, 11, 21, 21, 21]);
}

#[test]
fn messages_keep_their_order_and_may_be_to_oneself() {
    let out = all_ok(2, |comm| {
        let other = 1 - comm.rank();
        for i in 0..3 {
            comm.send(other, CALL, vec![i as f32])?;
        }
        comm.send(comm.rank(), CALL, vec![7.0f32])?;
        let mut got = Vec::new();
        for _ in 0..3 {
            got.extend(comm.receive::<f32>(other, CALL, 1)?);
        }
        got.extend(comm.receive::<f32>(comm.rank(), CALL, 1)?);
        let root = comm.broadcast(&everyone(comm), CALL, 1, vec![comm.rank() as u64])?;
        comm.barrier(&everyone(comm), CALL)?;
        Ok((got, root))
    });
    assert!(out.iter().all(|(got, root)| *got == [0.0, 1.0, 2.0, 7.0] && *root == [1]));
}

#[test]
fn sums_repeat_bit_by_bit_whoever_comes_first() {
    let once = |delayed: usize| {
        all_ok(3, move |comm| {
            if comm.rank() == delayed {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mine: Vec<f32> = (0..1000).map(|i| 1.0 / (1.0 + (i * 7 + comm.rank() * 13) as f32)).collect();
            comm.all_reduce(&everyone(comm), CALL, Op::Sum, mine)
        })
    };
    let (a, b) = (once(0), once(2));
    assert!(a.iter().chain(&b).all(|x| x.iter().zip(&a[0]).all(|(p, q)| p.to_bits() == q.to_bits())));
}

#[test]
fn what_is_put_in_is_counted_by_axis_and_call() {
    let moved = all_ok(2, |comm| {
        let group = everyone(comm);
        comm.all_gather(&group, Call::new("sp", "in"), vec![0.0f32; 3])?;
        comm.all_reduce(&group, Call::new("dp", "gradients"), Op::Sum, vec![0.0f64; 5])?;
        comm.all_reduce(&Group::new([comm.rank()]), Call::new("dp", "alone"), Op::Sum, vec![0.0f64; 5])?;
        Ok((comm.traffic().on_axis("sp"), comm.traffic().on_axis("dp")))
    });
    assert!(moved.iter().all(|(sp, dp)| (sp.bytes, dp.bytes, dp.calls) == (12, 40, 1)));
}

#[test]
fn members_that_disagree_end_the_run_by_name() {
    let both = ["tp group [0 1]", "rank 0", "rank 1"];
    all_fail(2, "comm/disagree", &[&both[..], &["all-reduce `test`", "all-gather `test`"]].concat(), |c| {
        match c.rank() {
            0 => c.all_reduce(&everyone(c), CALL, Op::Sum, vec![0.0f32]),
            _ => c.all_gather(&everyone(c), CALL, vec![0.0f32]),
        }
    });
    all_fail(2, "comm/disagree", &[&both[..], &["f32 × 1", "f32 × 2"]].concat(), |c| {
        c.all_reduce(&everyone(c), CALL, Op::Sum, vec![0.0f32; 1 + c.rank()])
    });
    all_fail(2, "comm/disagree", &[&both[..], &["f32", "f64"]].concat(), |c| match c.rank() {
        0 => c.all_gather(&everyone(c), CALL, vec![0.0f32]).map(drop),
        _ => c.all_gather(&everyone(c), CALL, vec![0.0f64]).map(drop),
    });
    all_fail(2, "comm/disagree", &[&both[..], &["in parts of [1, 2]", "in parts of [2, 1]"]].concat(), |c| {
        c.reduce_scatter_uneven(&everyone(c), CALL, vec![0.0f32; 3], &[1 + c.rank(), 2 - c.rank()])
    });
    all_fail(2, "comm/disagree", &["send `test` of f32 × 2", "send `test` of f32 × 3"], |c| match c.rank() {
        0 => c.send(1, CALL, vec![0.0f32; 2]).and_then(|()| c.barrier(&everyone(c), CALL)),
        _ => c.receive::<f32>(0, CALL, 3).and_then(|_| c.barrier(&everyone(c), CALL)),
    });
}

#[test]
fn a_member_that_panics_leaves_or_hangs_ends_the_run_on_every_rank() {
    all_fail(3, "comm/died", &["rank 1 died", "out of luck"], |c| {
        assert!(c.rank() != 1, "out of luck");
        c.barrier(&everyone(c), CALL)
    });
    all_fail(3, "comm/deadline", &["tp group [0 1 2]", "barrier `test`", "rank 2 (has called nothing)"], |c| {
        if c.rank() == 2 {
            std::thread::sleep(3 * SOON);
        }
        c.barrier(&everyone(c), CALL)
    });
    let results =
        run(2, Duration::from_secs(30), |c| if c.rank() == 0 { Ok(()) } else { c.barrier(&everyone(c), CALL) });
    assert!(results[0].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().rule, "comm/left");
}

#[test]
fn waiting_for_one_another_in_different_groups_is_a_deadline_not_a_hang() {
    all_fail(3, "comm/deadline", &["missing: rank"], |c| match c.rank() {
        0 => c.barrier(&Group::new([0, 1]), CALL),
        1 => c.barrier(&Group::new([1, 2]), CALL),
        _ => c.barrier(&Group::new([0, 2]), CALL),
    });
}

#[test]
fn a_lost_message_ends_when_the_others_give_up() {
    let begun = Instant::now();
    all_fail(2, "comm/deadline", &["rank 0 waited", "missing: rank 1"], |c| {
        if c.rank() == 1 {
            c.arm(crate::Fault::Drop { late: Duration::from_secs(60) });
        }
        c.all_reduce(&everyone(c), CALL, Op::Sum, vec![0.0f32])
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
}
