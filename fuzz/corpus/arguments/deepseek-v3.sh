#!/usr/bin/env bash
# deepseek-v3 on megatron (lane nvidia-pretraining)
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cd -- "$here"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
: "${NODE_RANK:=${SLURM_NODEID:-${JOB_COMPLETION_INDEX:-${PET_NODE_RANK:-0}}}}"
: "${RDZV_HOST:=${PET_MASTER_ADDR:-localhost}}"
# compiled kernels never fill the root volume [preflight/root-volume]
export TRITON_CACHE_DIR=/mnt/shardwright/caches/triton
# compiled kernels never fill the root volume [preflight/root-volume]
export TORCHINDUCTOR_CACHE_DIR=/mnt/shardwright/caches/inductor
# compiled kernels never fill the root volume [preflight/root-volume]
export CUDA_CACHE_PATH=/mnt/shardwright/caches/cuda
# tokenizers and data sets are kept with the data
export HF_HOME=/mnt/shardwright/data/huggingface
# temporary files never fill the root volume [preflight/root-volume]
export TMPDIR=/mnt/shardwright/tmp
case $NODE_RANK in '' | *[!0-9]*) printf 'NODE_RANK is no number: %s\n' "$NODE_RANK" >&2; exit 1 ;; esac
node=node$NODE_RANK
export SHARDWRIGHT_CHECKPOINTS=/mnt/shardwright/checkpoints/deepseek-v3-moe-megatron-tp1-pp8-vpp1-ep8-etp1
export SHARDWRIGHT_LOGS=/mnt/shardwright/logs/deepseek-v3-2b6051d8
export SHARDWRIGHT_LAUNCH_ID=2b6051d8fd96c25023c7ada6948e296f3e9f967f2ad6c03b45d6423ba24283e8
for folder in /mnt/shardwright/checkpoints /mnt/shardwright/data /mnt/shardwright/logs /mnt/shardwright/caches /mnt/shardwright/caches/triton /mnt/shardwright/caches/inductor /mnt/shardwright/caches/cuda /mnt/shardwright/data/huggingface /mnt/shardwright/tmp /mnt/shardwright/checkpoints/deepseek-v3-moe-megatron-tp1-pp8-vpp1-ep8-etp1 /mnt/shardwright/logs/deepseek-v3-2b6051d8; do
  mkdir -p -- "$folder"
  if [ "$(stat -c %d -- "$folder")" = "$(stat -c %d /)" ]; then
    printf '%s is on the root volume, and the policy keeps runs off it\n' "$folder" >&2
    exit 1
  fi
done
# What this node leaves behind, however it ends.
summary=$SHARDWRIGHT_LOGS/summary-$node.json
log=$SHARDWRIGHT_LOGS/$node.log
restarts=0
while [ -e "${summary%.json}.$restarts.json" ]; do restarts=$((restarts + 1)); done
if [ -e "$summary" ]; then mv -- "$summary" "${summary%.json}.$restarts.json"; restarts=$((restarts + 1)); fi
touch -- "$log"
first=$(($(wc -l < "$log") + 1))
started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
host=$(uname -n | tr -cd 'A-Za-z0-9._-')
state=refused signal=null ended=null status=null child=
write_summary() {
  # torchrun keeps a folder for every attempt of its own.
  attempts=$( (find "$SHARDWRIGHT_LOGS/torchrun" -mindepth 2 -maxdepth 2 -name 'attempt_[1-9]*' -newer "$log.began" 2>/dev/null || true) | wc -l)
  printf '{"schema": "shardwright/summary/1", "launch_id": %s, "job_name": %s, "recipe": %s, "mode": %s, "engine": %s, ' \
    '"2b6051d8fd96c25023c7ada6948e296f3e9f967f2ad6c03b45d6423ba24283e8"' '"deepseek-v3-2b6051d8"' '"deepseek-v3"' null '"megatron"' > "$summary.new"
  printf '"node": %s, "host": "%s", "state": "%s", "exit_status": %s, "signal": %s, "started": "%s", "ended": %s, ' \
    "$NODE_RANK" "$host" "$state" "$status" "$signal" "$started" "$ended" >> "$summary.new"
  printf '"restarts": %s, "engine_restarts": %s, "log": {"folder": %s, "file": "%s", "first_line": %s, "last_line": %s}, ' \
    "$restarts" "$attempts" '"/mnt/shardwright/logs/deepseek-v3-2b6051d8"' "$node.log" "$first" "$(wc -l < "$log")" >> "$summary.new"
  printf '"checkpoints": %s}\n' '"/mnt/shardwright/checkpoints/deepseek-v3-moe-megatron-tp1-pp8-vpp1-ep8-etp1"' >> "$summary.new"
  mv -- "$summary.new" "$summary"
}
finish() {
  status=$?
  ended="\"$(date -u +%Y-%m-%dT%H:%M:%SZ)\""
  if [ "$state" = running ]; then if [ "$status" = 0 ]; then state=finished; else state=failed; fi; fi
  if [ "$signal" != null ]; then state=stopped; fi
  write_summary
  rm -f -- "$log.began"
}
touch -- "$log.began"
trap finish EXIT
# Whose checkpoints these are: written once, compared ever after.
identity='{"schema":"shardwright/identity/1","recipe":"deepseek-v3","recipe_sha256":"5bb7c662879dd9aabf8f63111ff07a1f75935a57acf57a9f70c3e8f86ae395ef","mode":null,"features":["moe"],"engine":"megatron","seams":[],"layout":"tp1-pp8-vpp1-ep8-etp1"}'
mine=$SHARDWRIGHT_CHECKPOINTS/identity.json
adopts=${SHARDWRIGHT_ADOPT_CHECKPOINTS:-0}
if [ "$adopts" = 1 ] || [ -z "$(ls -A -- "$SHARDWRIGHT_CHECKPOINTS")" ]; then
  printf '%s\n' "$identity" > "$SHARDWRIGHT_CHECKPOINTS.$node.$$"
  if [ "$adopts" = 1 ]; then rm -f -- "$mine"; fi
  # Another node may be first, with the same words or with others.
  mv -n -- "$SHARDWRIGHT_CHECKPOINTS.$node.$$" "$mine" || true
  rm -f -- "$SHARDWRIGHT_CHECKPOINTS.$node.$$"
fi
held=$(cat -- "$mine" 2>/dev/null || printf 'nobody says whose')
if [ "$held" != "$identity" ]; then
  printf 'the checkpoints in %s are of another model, mode or layout, and are not loaded\n' "$SHARDWRIGHT_CHECKPOINTS" >&2
  printf '  they are of: %s\n  this is:     %s\n' "$held" "$identity" >&2
  printf 'name another storage.checkpoints in the policy; SHARDWRIGHT_ADOPT_CHECKPOINTS=1 loads them all the same\n' >&2
  exit 1
fi
engine() {
exec torchrun \
  --nnodes 8 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --rdzv-id deepseek-v3-2b6051d8 \
  --rdzv-backend c10d --rdzv-endpoint "$RDZV_HOST:29500" \
  --max-restarts 3 --tee 3 --log-dir /mnt/shardwright/logs/deepseek-v3-2b6051d8/torchrun \
  /opt/engine/pretrain_gpt.py \
  --num-layers 61 \
  --moe-layer-freq '([0]*3+[1]*58)' \
  --pipeline-model-parallel-layout 'Ettttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|ttttttt|tttttttL' \
  --hidden-size 7168 \
  --normalization RMSNorm \
  --norm-epsilon 1e-6 \
  --hidden-dropout 0.0 \
  --attention-dropout 0.0 \
  --ffn-hidden-size 18432 \
  --swiglu \
  --num-attention-heads 128 \
  --multi-latent-attention \
  --q-lora-rank 1536 \
  --kv-lora-rank 512 \
  --qk-head-dim 128 \
  --qk-pos-emb-head-dim 64 \
  --v-head-dim 128 \
  --qk-layernorm \
  --rope-type rope \
  --position-embedding-type rope \
  --rotary-base 10000 \
  --rotary-percent 1.0 \
  --max-position-embeddings 4096 \
  --disable-bias-linear \
  --num-experts 256 \
  --moe-router-topk 8 \
  --moe-ffn-hidden-size 2048 \
  --moe-grouped-gemm \
  --moe-shared-expert-intermediate-size 2048 \
  --moe-router-score-function sigmoid \
  --moe-router-dtype fp32 \
  --moe-router-enable-expert-bias \
  --moe-router-topk-scaling-factor 2.5 \
  --moe-router-num-groups 8 \
  --moe-router-group-topk 4 \
  --moe-router-load-balancing-type none \
  --vocab-size 129280 \
  --make-vocab-size-divisible-by 128 \
  --untie-embeddings-and-output-weights \
  --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 8 \
  --context-parallel-size 1 \
  --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 \
  --micro-batch-size 1 \
  --global-batch-size 128 \
  --seq-length 4096 \
  --bf16 \
  --accumulate-allreduce-grads-in-fp32 \
  --optimizer adam \
  --adam-beta1 0.9 \
  --adam-beta2 0.95 \
  --use-distributed-optimizer \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --no-rope-fusion \
  --moe-token-dispatcher-type alltoall \
  --tokenizer-type NullTokenizer \
  --mock-data \
  --split 100,0,0 \
  --train-iters 100 \
  --lr 0.0003 \
  --min-lr 3e-5 \
  --lr-decay-style cosine \
  --lr-decay-iters 100 \
  --lr-warmup-iters 10 \
  --weight-decay 0.1 \
  --clip-grad 1 \
  --seed 1234 \
  --eval-iters 0 \
  --save /mnt/shardwright/checkpoints/deepseek-v3-moe-megatron-tp1-pp8-vpp1-ep8-etp1 \
  --load /mnt/shardwright/checkpoints/deepseek-v3-moe-megatron-tp1-pp8-vpp1-ep8-etp1 \
  --save-interval 50 \
  --ckpt-format torch_dist \
  --log-interval 1 \
  --tensorboard-dir /mnt/shardwright/logs/deepseek-v3-2b6051d8/tensorboard \
  --no-create-attention-mask-in-dataloader
}
stop() {
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
ended_with=0
wait "$child" || ended_with=$?
# A signal ends the wait before the engine has ended.
while kill -0 "$child" 2>/dev/null; do
  ended_with=0
  wait "$child" || ended_with=$?
done
exec 1>&3 2>&4 3>&- 4>&-
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$tee" 2>/dev/null || break; sleep 0.2; done
exit "$ended_with"
