//! The first failure of runs that failed, as torchrun and its ranks print it.

use evidence::{Cause, cause, read};

/// What torchrun prints once its ranks have ended (torch/distributed/elastic/multiprocessing/errors, 2.15).
fn report(exit: &str, traceback: &str) -> String {
    format!(
        "E1118 20:01:14.120000 4100 site-packages/torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: {exit}) local_rank: 0 (pid: 4711) of binary: /opt/venv/bin/python3
Traceback (most recent call last):
  File \"/opt/venv/bin/torchrun\", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File \"/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py\", line 320, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-18_20:01:14
  host      : node-7
  rank      : 0 (local_rank: 0)
  exitcode  : {exit} (pid: 4711)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"
    )
}

fn found(log: &str) -> Cause {
    let run = read("node0.log", log.as_bytes(), None, &mut |_| ()).unwrap_or_else(|f| panic!("{f:#?}"));
    cause(&run).expect("a cause")
}

const ENABLE: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

/// Two ranks, line by line among each other; rank 1 is the first to say what it raised.
#[test]
fn tracebacks_of_several_ranks() {
    let log = "[default0]:[rank0]: Traceback (most recent call last):
[default1]:[rank1]: Traceback (most recent call last):
[default1]:[rank1]:   File \"/opt/engine/pretrain.py\", line 250, in <module>
[default0]:[rank0]:   File \"/opt/engine/pretrain.py\", line 250, in <module>
[default1]:[rank1]:     pretrain(
[default1]:[rank1]:   File \"/opt/venv/lib/python3.12/site-packages/megatron/training/training.py\", line 4481, in train
[default0]:[rank0]:   File \"/opt/engine/data.py\", line 3, in read
[default1]:[rank1]:     count = train_iters // args.eval_interval
[default1]:[rank1]:             ~~~~~~~~~~~~^^~~~~~~~~~~~~~~~~~~~
[default1]:[rank1]: TypeError: unsupported operand type(s) for //: 'int' and 'NoneType'
[default0]:[rank0]: KeyError: 'text'
";
    let cause = found(&(log.to_string() + &report("1", ENABLE)));
    let words = "TypeError: unsupported operand type(s) for //: 'int' and 'NoneType' (training.py:4481 in train)";
    assert_eq!((cause.words.as_str(), cause.rank, cause.line), (words, Some(1), 10));
    assert_eq!(cause.hint, None);
}

#[test]
fn an_exception_that_says_nothing() {
    let log = "Traceback (most recent call last):
  File \"/launch/custom_spec.py\", line 41, in spec
    raise NotImplementedError
NotImplementedError
";
    assert_eq!(
        found(&(log.to_string() + &report("1", ENABLE))).words,
        "NotImplementedError (custom_spec.py:41 in spec)"
    );
}

#[test]
fn apex_is_missing() {
    let log = "[default0]:[rank0]: Traceback (most recent call last):
[default0]:[rank0]:   File \"/opt/engine/megatron/core/tensor_parallel/layers.py\", line 812, in __init__
[default0]:[rank0]:     raise RuntimeError(
[default0]:[rank0]: RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the custom CUDA extension fused_weight_gradient_mlp_cuda module is not found. To use gradient_accumulation_fusion you must install APEX with --cpp_ext and --cuda_ext.
";
    let cause = found(&(log.to_string() + &report("1", ENABLE)));
    assert!(cause.words.starts_with("RuntimeError: ColumnParallelLinear was called"), "{cause:?}");
    assert!(cause.hint.unwrap().contains("--no-gradient-accumulation-fusion"));
}

#[test]
fn a_module_is_missing() {
    let log = "[default0]:Traceback (most recent call last):
[default0]:  File \"/launch/model.py\", line 7, in <module>
[default0]:    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
[default0]:ModuleNotFoundError: No module named 'mamba_ssm'
";
    let cause = found(&(log.to_string() + &report("1", ENABLE)));
    assert_eq!(cause.words, "ModuleNotFoundError: No module named 'mamba_ssm' (model.py:7 in <module>)");
    assert!(cause.hint.unwrap().starts_with("`mamba_ssm` is not installed"));
}

#[test]
fn a_flag_that_the_engine_does_not_have() {
    let log = "[default0]:usage: train.py [-h] --plan PLAN
[default0]:train.py: error: unrecognized arguments: --gradient-checkpointing
";
    let cause = found(&(log.to_string() + &report("2", ENABLE)));
    assert_eq!(cause.words, "train.py: error: unrecognized arguments: --gradient-checkpointing");
    assert!(cause.hint.unwrap().contains("packages.py"));
}

/// After three steps; a warning with a traceback before them is not why it failed.
#[test]
fn memory_that_ran_out() {
    let log = "[default0]:Traceback (most recent call last):
[default0]:  File \"/launch/optional.py\", line 1, in <module>
[default0]:ImportError: flash_attn_3 is not there, going on without
[default0]:step 1 loss 11.000000 seconds 9.000000
[default0]:step 2 loss 10.000000 seconds 1.000000
[default0]:[rank0]: Traceback (most recent call last):
[default0]:[rank0]:   File \"/launch/train.py\", line 150, in run_whole
[default0]:[rank0]:   File \"/opt/venv/lib/python3.12/site-packages/torch/autograd/graph.py\", line 829, in _engine_run_backward
[default0]:[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.26 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.58 GiB is free. Of the allocated memory 120.00 GiB is allocated by PyTorch, and 3.93 GiB is reserved by PyTorch but unallocated.
";
    let cause = found(&(log.to_string() + &report("1", ENABLE)));
    assert!(cause.words.starts_with("in backward: CUDA out of memory. Tried to allocate 2.26 GiB"), "{cause:?}");
    assert!(cause.words.ends_with("(train.py:150 in run_whole)"), "{cause:?}");
    assert_eq!(cause.rank, Some(0));
    assert!(cause.hint.unwrap().starts_with("`shardwright fit`"));
}

#[test]
fn a_process_that_was_killed() {
    let cause = found(
        &("[default0]:step 1 loss 11.000000 seconds 9.000000\n".to_string()
            + &report("-9", "Signal 9 (SIGKILL) received by PID 4711")),
    );
    assert_eq!(cause.words, "traceback : Signal 9 (SIGKILL) received by PID 4711");
    assert!(cause.hint.unwrap().contains("ran out of memory"));
}

/// As a twelve-layer run on an H200 ended.
#[test]
fn a_kernel_that_failed_on_the_device() {
    let log = "[default0]:step 17 loss 6.191746 seconds 0.5
[default0]:[rank0]:[E1119 19:41:29.602620645 ProcessGroupNCCL.cpp:2119] [PG ID 5 PG GUID 7(MODEL_PARALLEL_GROUP) Rank 0] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure
[default0]:terminate called after throwing an instance of 'c10::DistBackendError'
";
    let cause = found(&(log.to_string() + &report("-6", "Signal 6 (SIGABRT) received by PID 3486")));
    assert!(cause.words.contains("unspecified launch failure"), "{cause:?}");
    assert!(cause.hint.unwrap().contains("CUDA_LAUNCH_BLOCKING=1"));
}

/// What rank 0 says of it comes after the rank that failed.
#[test]
fn other_ranks_report_nccl() {
    let log = "[default1]:[rank1]: Traceback (most recent call last):
[default1]:[rank1]:   File \"/launch/moe.py\", line 12, in forward
[default1]:[rank1]: AssertionError: tokens are lost
[default0]:[rank0]:[E1118 ProcessGroupNCCL.cpp:2068] [PG ID 0] Process group watchdog thread terminated with exception: NCCL error: unhandled system error
[default0]:[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error
";
    let cause = found(&(log.to_string() + &report("1", ENABLE)));
    assert_eq!(cause.words, "AssertionError: tokens are lost (moe.py:12 in forward)");
    let only = found(&log.lines().skip(3).map(|line| format!("{line}\n")).collect::<String>());
    assert!(only.words.contains("NCCL") && only.hint.unwrap().contains("NCCL_DEBUG=INFO"));
}

#[test]
fn a_run_that_went_well_has_none() {
    let run = read("x", &b"step 1 loss 11.0 seconds 9.0\n"[..], None, &mut |_| ()).unwrap();
    assert_eq!(cause(&run), None);
}
