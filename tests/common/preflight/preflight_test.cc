// Every rule of preflight: fires on a job that breaks it, does not fire on one that does not.
#include "common/preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "tests/common/preflight/preflight_cases.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

struct RuleCase {
  const char* rule;
  const char* field;    // of the finding
  const char* problem;  // part of it
  std::function<void(GoodJob*)> break_it;
};

const RuleCase kCases[] = {
    {"MODEL_RANGE", "model.mlp_ratio", "0 (from 1 to 16)",
     [](GoodJob* job) { job->spec.mutable_model()->set_mlp_ratio(0); }},
    {"TRAIN_RANGE", "train.lr", "0 (from 1e-10 to 1)", [](GoodJob* job) { Train(job)->set_lr(0); }},
    {"TRAIN_UNUSED", "train.decay_steps", "no such phase",
     [](GoodJob* job) { Train(job)->set_decay_steps(1); }},
    {"NSA_RANGE", "nsa.audit_every", "-1 (from 0 to 1,000,000,000)",
     [](GoodJob* job) { job->spec.mutable_nsa()->set_audit_every(-1); }},
    {"DATA_RANGE", "data.loader_timeout_seconds", "-1",
     [](GoodJob* job) { Data(job)->set_loader_timeout_seconds(-1); }},
    {"RESOURCES_RANGE", "resources.gpus", "0 (from 1 to",
     [](GoodJob* job) { job->spec.mutable_resources()->set_gpus(0); }},
    {"RESTART_RANGE", "restart.hang_timeout_seconds", "0 (from 1 to 86,400)",
     [](GoodJob* job) { job->spec.mutable_restart()->set_hang_timeout_seconds(0); }},
    {"GUARD_RANGE", "guard.max_gate_collapse", "1.5 (from 0 to 1)",
     [](GoodJob* job) { job->spec.mutable_guard()->set_max_gate_collapse(1.5); }},
    {"PREFLIGHT_RANGE", "preflight.max_lost_seconds", "59 (from 60 to 86,400)",
     [](GoodJob* job) { job->spec.mutable_preflight()->set_max_lost_seconds(59); }},
    {"LIMITS_RANGE", "limits.hours", "0 (above 0, at most 87,600)",
     [](GoodJob* job) { job->spec.mutable_limits()->set_hours(0); }},
    {"TIME_LIMIT_SHORT", "limits.hours", "it will stop after about",
     [](GoodJob* job) { job->spec.mutable_limits()->set_hours(0.01); }},
    {"MACHINES_DIFFER", "resources.nodes", "with the same programs): b: NCCL 2.27.3, a has 2.28.3",
     [](GoodJob* job) {
       job->context.programs_differ = {"b: NCCL 2.27.3, a has 2.28.3", "fix"};
     }},
    {"CLOCKS_DIFFER", "resources.nodes", "agree within 1 s): b: clock 3.0 s behind that of a",
     [](GoodJob* job) {
       job->context.clocks_differ = {"b: clock 3.0 s behind that of a", "fix"};
     }},
    {"REQUIRE_UNMET", "resources.require", "gpu: h100 (2 machines with NVIDIA A100)",
     [](GoodJob* job) { job->context.unmet = "gpu: h100 (2 machines with NVIDIA A100)"; }},
    {"REQUIRE_INVALID", "resources.require.gpu_memory", "'much' (GiB, a number above 0)",
     [](GoodJob* job) {
       (*job->spec.mutable_resources()->mutable_require())["gpu_memory"] = "much";
     }},
    {"CORDONED_MACHINE", "resources.gpus", "a is drained",
     [](GoodJob* job) { job->machine.cordon = "a is drained"; }},
    {"SHAPE_GROUPS", "model.n_kv_groups", "5 (must divide n_heads = 12)",
     [](GoodJob* job) { job->spec.mutable_model()->set_n_kv_groups(5); }},
    {"SHAPE_STRIDE", "nsa.l_sel", "60 (must be a multiple of d = 16)",
     [](GoodJob* job) { job->spec.mutable_nsa()->set_l_sel(60); }},
    {"SHAPE_INVALID", "model.d_k", "63 (must be 16, 32, 64, 128 or 192)",
     [](GoodJob* job) { job->spec.mutable_model()->set_d_k(63); }},
    {"MODEL_CONFLICT", "model.activation", "relu2 with mlp: swiglu (must be silu)",
     [](GoodJob* job) {
       job->spec.mutable_model()->set_mlp(v1::MLP_SWIGLU);
       job->spec.mutable_model()->set_activation(v1::ACTIVATION_RELU2);
     }},
    {"BATCH_NOT_DIVISIBLE", "train.batch_size", "3 sequences (must be a multiple of the 2 ranks)",
     [](GoodJob* job) {
       job->spec.mutable_resources()->set_gpus(2);
       job->machine.gpus.push_back(job->machine.gpus[0]);
       Train(job)->set_batch_size(3);
     }},
    {"CONTEXT_PARALLEL", "resources.context_parallel", "2 (must divide resources.gpus = 1)",
     [](GoodJob* job) { job->spec.mutable_resources()->set_context_parallel(2); }},
    {"MERGE_NOT_DIVISIBLE", "runtime.merge_micro_batches",
     "3 (must divide accumulate_grad_batches = 4)",
     [](GoodJob* job) {
       Train(job)->set_accumulate_grad_batches(4);
       job->spec.mutable_runtime()->set_merge_micro_batches(3);
     }},
    {"BRANCHES_INVALID", "nsa.branches", "twice",
     [](GoodJob* job) { job->spec.mutable_nsa()->add_branches(v1::BRANCH_CMP); }},
    {"VOCAB_TOO_SMALL", "model.vocab", "255 (the tokenizer has 256 tokens)",
     [](GoodJob* job) { job->spec.mutable_model()->set_vocab(255); }},
    {"SEQ_LEN_SHORT", "train.seq_len", "the window is all of the past",
     [](GoodJob* job) { job->spec.mutable_nsa()->set_w(4096); }},
    {"SELECTION_FORCED", "nsa.n_sel", "none is chosen by score",
     [](GoodJob* job) { job->spec.mutable_nsa()->set_n_sel(3); }},
    {"GROUPS_SMALL", "model.n_kv_groups", "a step may take 1.6 times as long",
     [](GoodJob* job) { job->spec.mutable_model()->set_n_kv_groups(job->spec.model().n_heads()); }},
    {"ROPE_BASE", "model.rope_base", "read far back in sequences of 16,384 tokens",
     [](GoodJob* job) { Train(job)->set_seq_len(16384); }},
    {"NAME_INVALID", "name", "'Bad_Name'", [](GoodJob* job) { job->spec.set_name("Bad_Name"); }},
    {"LABELS_INVALID", "labels.team", "300",
     [](GoodJob* job) { (*job->spec.mutable_labels())["team"] = std::string(300, 'x'); }},
    {"SWEEP_INVALID", "sweep.halve_at[0]", "1 (must be a multiple of train.eval_every",
     [](GoodJob* job) {
       v1::SweepSpec& sweep = *job->spec.mutable_sweep();
       sweep.set_name("lr");
       sweep.set_jobs(4);
       sweep.add_halve_at(1);
     }},
    {"PATH_INVALID", "train.out_dir", "has .. in it",
     [](GoodJob* job) { Train(job)->set_out_dir("/data/../etc"); }},
    {"WAIVER_INVALID", "preflight.waive.DISK_TO_SMALL", "is not the id of a rule",
     [](GoodJob* job) {
       (*job->spec.mutable_preflight()->mutable_waive())["DISK_TO_SMALL"] = "typo";
     }},
    {"PRECISION_NOT_BF16", "runtime.precision", "fp32 on cuda",
     [](GoodJob* job) { job->spec.mutable_runtime()->set_precision(v1::PRECISION_FP32); }},
    {"CUDA_WIDTH", "model.dim", "100 (must be a multiple of 8 on a GPU)",
     [](GoodJob* job) { job->spec.mutable_model()->set_dim(100); }},
    {"CPU_BF16", "runtime.precision", "bf16 on the cpu",
     [](GoodJob* job) {
       job->MoveToCpu();
       job->spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
     }},
    {"SHARD_INVALID", "runtime.shard_optimizer", "true beside shard: gradients",
     [](GoodJob* job) {
       job->spec.mutable_runtime()->set_shard_optimizer(true);
       job->spec.mutable_runtime()->set_shard(v1::SHARD_GRADIENTS);
     }},
    {"NO_CHECKPOINT_CADENCE", "train.save_every", "0 (more than 0)",
     [](GoodJob* job) { Train(job)->set_save_every(0); }},
    {"SAVE_EVERY_TOO_LARGE", "train.save_every", "5001 (at most steps = 5000)",
     [](GoodJob* job) { Train(job)->set_save_every(5001); }},
    {"LOST_WORK", "train.save_every", "(at most 30 min)",
     [](GoodJob* job) { Train(job)->set_accumulate_grad_batches(4096); }},
    {"CHECKPOINT_URL", "train.checkpoint_url", "https://host/x: is not of the form s3://BUCKET/KEY",
     [](GoodJob* job) { Train(job)->set_checkpoint_url("https://host/x"); }},
    {"KEEP_CHECKPOINTS_TOO_FEW", "train.keep_checkpoints", "1 (at least 2)",
     [](GoodJob* job) { Train(job)->set_keep_checkpoints(1); }},
    {"GRADIENT_CHECKPOINTING_OFF", "runtime.gradient_checkpointing", "off (must be on)",
     [](GoodJob* job) { job->spec.mutable_runtime()->set_gradient_checkpointing(false); }},
    {"MODEL_TOO_SMALL_FOR_RUN", "model.dim", "dim 128 (at least 256)",
     [](GoodJob* job) { job->spec.mutable_model()->set_dim(128); }},
    {"LR_TOO_LARGE", "train.lr", "0.02 (at most 0.01 with AdamW)",
     [](GoodJob* job) { Train(job)->set_lr(0.02); }},
    {"LR_WARMUP_TOO_LONG", "train.warmup_steps", "2501 (at most half of steps, 2500)",
     [](GoodJob* job) { Train(job)->set_warmup_steps(2501); }},
    {"THROUGHPUT_GUARD_OFF", "guard.min_tokens_per_second", "0 (more than 0)",
     [](GoodJob* job) { job->spec.mutable_guard()->set_min_tokens_per_second(0); }},
    {"THROUGHPUT_GUARD_TOO_LOW", "guard.min_tokens_per_second", "100 (at least a third",
     [](GoodJob* job) { job->spec.mutable_guard()->set_min_tokens_per_second(100); }},
    {"THROUGHPUT_GUARD_TOO_HIGH", "guard.min_tokens_per_second", "would end a healthy run",
     [](GoodJob* job) { job->spec.mutable_guard()->set_min_tokens_per_second(1e9); }},
    {"HANG_TIMEOUT_SHORT", "restart.hang_timeout_seconds", "a step is expected to take",
     [](GoodJob* job) {
       Train(job)->set_accumulate_grad_batches(4096);
       job->spec.mutable_restart()->set_hang_timeout_seconds(1);
     }},
    {"DATA_PATH_MISSING", "data.path", "no files", [](GoodJob* job) { Data(job)->clear_path(); }},
    {"DATA_PATH_IGNORED", "data.source", "would not be read",
     [](GoodJob* job) { Data(job)->set_source(v1::DATA_SOURCE_SYNTHETIC); }},
    {"DATA_WRONG_FILE", "data.path[0]", "a pointer of Git LFS",
     [](GoodJob* job) {
       job->Write("train.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
     }},
    {"DATA_TOKENS", "model.vocab", "256 (token 1 of",
     [](GoodJob* job) {
       std::string tokens(8192, '\0');
       tokens[2] = '\xda';
       tokens[3] = '\1';
       job->Write("train.bin", tokens);
       job->Write("val.bin", std::string(8192, '\0'));
       Data(job)->set_source(v1::DATA_SOURCE_TOKENS);
       Data(job)->set_separator("none");
       Data(job)->set_path(0, job->PathOf("train.bin"));
       Data(job)->set_val_path(0, job->PathOf("val.bin"));
     }},
    {"DATA_NOT_UTF8", "data.path[0]", "100 % of the bytes of",
     [](GoodJob* job) {
       std::string latin1;
       while (latin1.size() < (4 << 20))
         latin1 +=
             "caf\xE9 und M\xFChle, gar nicht so \xFC"
             "bel\n";
       job->Write("train.txt", latin1);
     }},
    {"DATA_KIND_MISMATCH", "data.path[0]", "ending of another data.source",
     [](GoodJob* job) {
       job->Write("train.jsonl.zst", std::string(4 << 20, 'a'));
       Data(job)->set_path(0, job->PathOf("train.jsonl.zst"));
     }},
    {"DATA_NOT_JSONL", "data.path[0]", "line 1: no field 'text'",
     [](GoodJob* job) {
       Data(job)->set_source(v1::DATA_SOURCE_JSONL);
       job->Write("train.jsonl", "{\"body\": \"a\"}\n{\"text\": \"b\"}\n");
       job->Write("val.jsonl", "{\"text\": \"c\"}");
       Data(job)->set_path(0, job->PathOf("train.jsonl"));
       Data(job)->set_val_path(0, job->PathOf("val.jsonl"));
     }},
    {"DATA_NOT_PARQUET", "data.path[0]", "does not end with PAR1: the file was cut off",
     [](GoodJob* job) {
       job->Write("train.parquet", "PAR1" + std::string(4 << 20, 'a'));
       job->Write("val.parquet", "PAR1 PAR1");
       Data(job)->set_source(v1::DATA_SOURCE_PARQUET);
       Data(job)->set_path(0, job->PathOf("train.parquet"));
       Data(job)->set_val_path(0, job->PathOf("val.parquet"));
     }},
    {"DATA_URL", "data.path[0]", "gs://b/x: is neither a path nor a URL that is read",
     [](GoodJob* job) { Data(job)->set_path(0, "gs://b/x"); }},
    {"DATA_NOT_FETCHED", "data.path[0]", "https://example.com/x.txt is not fetched here",
     [](GoodJob* job) { Data(job)->set_path(0, "https://example.com/x.txt"); }},
    {"DATA_UNREADABLE", "data.path[0]", "No such file",
     [](GoodJob* job) { Data(job)->set_path(0, job->PathOf("missing.txt")); }},
    {"DATA_EMPTY_FILES", "data.path[1]", "1 of 2 files have 0 bytes",
     [](GoodJob* job) {
       job->Write("empty.txt", "");
       Data(job)->add_path(job->PathOf("empty.txt"));
     }},
    {"DATA_PREPARED", "data.path[0]", "is a folder without a manifest.json",
     [](GoodJob* job) {
       job->Write("train.tokens/tokens-00000.bin", "no manifest beside it");
       Data(job)->set_source(v1::DATA_SOURCE_TOKENS);
       Data(job)->set_path(0, job->PathOf("train.tokens"));
     }},
    {"DATA_SEPARATOR", "data.separator", "train.bin does not say where its documents begin",
     [](GoodJob* job) {
       job->Write("train.bin", std::string(4 << 20, '\0'));
       Data(job)->set_source(v1::DATA_SOURCE_TOKENS);
       Data(job)->clear_tokenizer();
       Data(job)->set_path(0, job->PathOf("train.bin"));
     }},
    {"TOKENIZER_MISSING", "data.tokenizer_path", "merges.txt: No such file",
     [](GoodJob* job) {
       job->Write("gpt2/vocab.json", "{}");
       Data(job)->set_tokenizer(v1::TOKENIZER_GPT2);
       Data(job)->set_tokenizer_path(job->PathOf("gpt2"));
       job->spec.mutable_model()->set_vocab(50257);
     }},
    {"DATA_TEXT_FIELD", "data.text_field", "'body' (only for jsonl and parquet)",
     [](GoodJob* job) { Data(job)->set_text_field("body"); }},
    {"DATA_WHERE", "data.where.source", "set, but the files have no fields",
     [](GoodJob* job) { (*Data(job)->mutable_where())["source"].add_value("a"); }},
    {"DATA_WHERE_VALUES", "data.except.source", "none of 2 records has the value 'b'",
     [](GoodJob* job) {
       const std::string text = "\", \"text\": \"" + std::string(2 << 20, 'a') + "\"}\n";
       job->Write("train.jsonl", "{\"source\": \"c" + text + "{\"source\": \"d" + text);
       Data(job)->set_source(v1::DATA_SOURCE_JSONL);
       Data(job)->set_path(0, job->PathOf("train.jsonl"));
       Data(job)->clear_val_path();
       Data(job)->set_val_fraction(0.5);
       (*Data(job)->mutable_except())["source"].add_value("b");
     }},
    {"DATA_WHERE_RARE", "data.except.source", "none of the first 32 records has the value 'b'",
     [](GoodJob* job) {
       for (int file = 0; file < 33; ++file) {
         job->Write(absl::StrFormat("part-%02d.jsonl", file),
                    "{\"source\": \"c\", \"text\": \"" + std::string(200'000, 'a') + "\"}\n");
       }
       Data(job)->set_source(v1::DATA_SOURCE_JSONL);
       Data(job)->set_path(0, job->PathOf("part-*.jsonl"));
       Data(job)->clear_val_path();
       Data(job)->set_val_fraction(0.5);
       (*Data(job)->mutable_except())["source"].add_value("b");
     }},
    {"LOSS_ON", "data.path", "has no conversations (data.loss_on: assistant",
     [](GoodJob* job) { Data(job)->set_loss_on(v1::LOSS_ON_ASSISTANT); }},
    {"DATA_MIX", "data.mix[1].weight", "0.0001 is 0.0001 of the sum (at least 0.001)",
     [](GoodJob* job) { Mix(job, 1, 1e-4); }},
    {"DATA_STREAM", "data.shuffle_window", "set, but data.stream is not true",
     [](GoodJob* job) { Data(job)->set_shuffle_window(64); }},
    {"VAL_SETS", "data.val.a b", "'a b' (1 to 63 letters",
     [](GoodJob* job) { (*Data(job)->mutable_val())["a b"] = job->PathOf("val.txt"); }},
    {"DATA_TOO_SMALL", "data.path", "one batch takes 4,098",
     [](GoodJob* job) { job->Write("train.txt", std::string(4097, 'a')); }},
    {"DATA_REPEATED", "data.path", "times (at most 10)",
     [](GoodJob* job) { Train(job)->set_accumulate_grad_batches(8); }},
    {"DATA_SYNTHETIC", "data.source", "learns no language",
     [](GoodJob* job) {
       Data(job)->set_source(v1::DATA_SOURCE_UNIFORM);
       Data(job)->clear_path();
       Data(job)->clear_val_path();
     }},
    {"DATA_SYNTHETIC_FALLBACK", "data.allow_synthetic_fallback", "true (must be false)",
     [](GoodJob* job) { Data(job)->set_allow_synthetic_fallback(true); }},
    {"VAL_NOT_DISJOINT", "data.val_path[0]", "is also used for training",
     [](GoodJob* job) {
       job->Write("copy.txt", std::string(4 << 20, 'a'));
       Data(job)->set_val_path(0, job->PathOf("copy.txt"));
     }},
    {"VAL_AMBIGUOUS", "data.val_fraction", "0.1, but val_path is set too",
     [](GoodJob* job) { Data(job)->set_val_fraction(0.1); }},
    {"VAL_TOO_SMALL", "data.val_fraction", "take a sequence of 2,049 each",
     [](GoodJob* job) {
       job->Write("train.txt", std::string(4097, 'a'));
       Data(job)->clear_val_path();
       Data(job)->set_val_fraction(0.01);
     }},
    {"VAL_SHARE", "data.val_fraction", "4,194,304 tokens is 419 (at least one sequence of 2,049",
     [](GoodJob* job) {
       Data(job)->clear_val_path();
       Data(job)->set_val_fraction(1e-4);
     }},
    {"EVAL_WITHOUT_DATA", "train.eval_every", "there is no validation data",
     [](GoodJob* job) { Data(job)->clear_val_path(); }},
    {"EVAL_EVERY_TOO_LARGE", "train.eval_every", "5001 (at most steps = 5000)",
     [](GoodJob* job) { Train(job)->set_eval_every(5001); }},
    {"EVAL_OFF", "train.eval_every", "0 (more than 0)",
     [](GoodJob* job) { Train(job)->set_eval_every(0); }},
    {"PROVISIONER_UNKNOWN", "resources.provisioner", "'pbs' (must be slurm)",
     [](GoodJob* job) { job->spec.mutable_resources()->set_provisioner("pbs"); }},
    {"MORE_NODES_THAN_RANKS", "resources.nodes", "2 (at most resources.gpus = 1)",
     [](GoodJob* job) { job->spec.mutable_resources()->set_nodes(2); }},
    {"RANK_ADDRESS_MISSING", "resources.nodes", "2, but this one has no rank_address",
     [](GoodJob* job) {
       job->spec.mutable_resources()->set_nodes(2);
       job->spec.mutable_resources()->set_gpus(2);
     }},
    {"GPU_UNAVAILABLE", "runtime.device", "libcudart.so.13: not found",
     [](GoodJob* job) {
       job->machine.cuda_worker = false;
       job->machine.cuda_problem = "libcudart.so.13: not found";
     }},
    {"GPU_COUNT", "resources.gpus", "2 on one machine (it has 1)",
     [](GoodJob* job) { job->spec.mutable_resources()->set_gpus(2); }},
    {"NCCL_UNAVAILABLE", "resources.gpus", "2, but GPUs cannot work together: NCCL: not found",
     [](GoodJob* job) {
       job->machine.gpus.push_back(job->machine.gpus[0]);
       job->machine.cuda_problem = "NCCL: not found";
       job->spec.mutable_resources()->set_gpus(2);
     }},
    {"GPU_CAPABILITY", "runtime.device", "compute capability 7.5 (at least 8.0)",
     [](GoodJob* job) { job->machine.gpus[0].compute_capability = 75; }},
    {"GPU_DRIVER", "runtime.device", "535.1 (580 or newer)",
     [](GoodJob* job) { job->machine.driver_version = "535.1"; }},
    {"CPU_SLOTS", "resources.gpus", "4 CPU ranks on one machine (it has 2 slots)",
     [](GoodJob* job) {
       job->MoveToCpu();
       job->spec.mutable_resources()->set_gpus(4);
       Train(job)->set_batch_size(4);
     }},
    {"LR_ADVICE", "train.lr", "2e-05 (about 6.0e-04 is usual for 82 million parameters",
     [](GoodJob* job) { Train(job)->set_lr(2e-5); }},
    {"BATCH_ADVICE", "train.batch_size", "4,096 tokens a step (about 1",
     [](GoodJob* job) { Train(job)->set_steps(50'000); }},
    {"DECAY_ADVICE", "train.weight_decay", "0.01 (0.1 is usual",
     [](GoodJob* job) { Train(job)->set_weight_decay(0.01); }},
    {"MEMORY_ESTIMATE_EXCEEDED", "train.batch_size", "master weights",
     [](GoodJob* job) { job->machine.gpus[0].memory_bytes = int64_t{1} << 30; }},
    {"HOST_MEMORY_EXCEEDED", "data.path", "about 24.38 MiB of host memory for the text",
     [](GoodJob* job) { job->machine.memory_bytes = 24 << 20; }},
    {"DISK_TOO_SMALL", "train.out_dir", "for 1000000001 checkpoints",
     [](GoodJob* job) { Train(job)->set_keep_checkpoints(1'000'000'000); }},
    {"OUT_DIR_NOT_WRITABLE", "train.out_dir", "is not a folder",
     [](GoodJob* job) { Train(job)->set_out_dir(job->PathOf("train.txt")); }},
    {"OUT_DIR_TAKEN", "train.out_dir", "belongs to job jother",
     [](GoodJob* job) {
       job->Write("out/owner.json", R"({"job_id": "jother", "job_hash": "00"})");
     }},
    {"RESUME_NOT_FOUND", "restart.resume", "is not a checkpoint",
     [](GoodJob* job) { job->spec.mutable_restart()->set_resume(job->PathOf("step-00000100")); }},
    {"INIT_INVALID", "restart.init", "is not a checkpoint",
     [](GoodJob* job) { job->spec.mutable_restart()->set_init(job->PathOf("step-00000100")); }},
    {"OUT_DIR_DIFFERS", "train.out_dir", "nsa.n_sel: 16 -> 8",
     [](GoodJob* job) {
       job->WriteCheckpoint("out/checkpoints/step-00000100", 100);
       job->spec.mutable_nsa()->set_n_sel(8);
     }},
    {"OUT_DIR_UNREADABLE", "train.out_dir", "has 1 checkpoint (one must be readable): ",
     [](GoodJob* job) { job->Write("out/checkpoints/step-00000100/state.json", "{}"); }},
    {"OUT_DIR_NOT_EMPTY", "restart.resume", "has 1 checkpoint (must have none)",
     [](GoodJob* job) {
       job->WriteCheckpoint("out/checkpoints/step-00000100", 100);
       job->spec.mutable_restart()->set_resume("never");
     }},
    {"NOTHING_TO_DO", "train.steps", "has a checkpoint of step 5000",
     [](GoodJob* job) { job->WriteCheckpoint("out/checkpoints/step-00005000", 5000); }},
    {"SCHEDULE_CHANGED", "train.steps", "5000 -> 10000 changes the learning rate of step 3001",
     [](GoodJob* job) {
       job->WriteCheckpoint("out/checkpoints/step-00003000", 3000);
       Train(job)->set_steps(10'000);
     }},
    {"RESUME_MISMATCH", "restart.resume", "model.n_layers: 12 -> 13",
     [](GoodJob* job) {
       job->WriteCheckpoint("step-00000100", 100);
       job->spec.mutable_model()->set_n_layers(13);
       job->spec.mutable_restart()->set_resume(job->PathOf("step-00000100"));
     }},
};

class EveryRule : public testing::TestWithParam<RuleCase> {};

TEST_P(EveryRule, FiresWhenBrokenAndOnlyThen) {
  GoodJob job;
  EXPECT_EQ(FindingOf(job.Check(), GetParam().rule), nullptr) << "on the good job";

  GetParam().break_it(&job);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, GetParam().rule);
  ASSERT_NE(finding, nullptr) << report.DebugString();
  EXPECT_EQ(finding->field(), GetParam().field);
  EXPECT_THAT(finding->problem(), HasSubstr(GetParam().problem));
  EXPECT_FALSE(finding->fix().empty());
  if (finding->severity() == v1::SEVERITY_ERROR) {
    EXPECT_FALSE(report.accepted());
  }
}

TEST_P(EveryRule, IsWaivedByItsIdWithAReasonExactlyWhenItMayBe) {
  GoodJob job;
  GetParam().break_it(&job);
  (*job.spec.mutable_preflight()->mutable_waive())[GetParam().rule] = "known and meant";
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, GetParam().rule);
  ASSERT_NE(finding, nullptr);
  bool waivable = false;
  for (const RuleInfo& rule : PreflightRules()) {
    if (rule.id == GetParam().rule) waivable = rule.waivable;
  }
  EXPECT_EQ(finding->waived(), waivable ? "known and meant" : "");
  if (!waivable) {
    EXPECT_NE(FindingOf(report, "WAIVER_INVALID"), nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Preflight, EveryRule, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.rule); });

// Every message of a rule in full is in messages.golden, so that other tests need only the rule,
// the field and the value. After a change of a message run this test with NSA_WRITE_GOLDEN=1 in the
// environment, which writes the file again, and read its diff.
TEST(Preflight, SaysWhatMessagesGoldenHas) {
  std::string messages;
  for (const RuleCase& one : kCases) {
    GoodJob job;
    one.break_it(&job);
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, one.rule);
    ASSERT_NE(finding, nullptr) << one.rule;
    absl::StrAppend(&messages, one.rule, ": ",
                    absl::StrReplaceAll(absl::StrCat(finding->field(), ": ", finding->problem(),
                                                     "; ", finding->fix(), "\n"),
                                        {{job.folder.path().string(), "DIR"}}));
  }
  const std::string path = SourceDir() + "/tests/common/preflight/messages.golden";
  if (std::getenv("NSA_WRITE_GOLDEN") != nullptr) std::ofstream(path) << messages;
  std::ifstream in(path);
  EXPECT_EQ(messages, std::string(std::istreambuf_iterator<char>(in), {}));
  EXPECT_THAT(messages,
              testing::Not(testing::ContainsRegex("(from|to|above|most|least) [0-9.]+e[+]")))
      << "a limit is written with Number()";
}

TEST(Preflight, HasACaseHereForEveryRule) {
  std::set<std::string> rules;
  for (const RuleInfo& rule : PreflightRules()) {
    EXPECT_TRUE(rules.insert(rule.id).second && !rule.summary.empty()) << "twice? " << rule.id;
  }
  for (const RuleCase& one : kCases) rules.erase(one.rule);  // the rest have tests of their own
  EXPECT_THAT(rules, testing::ElementsAre("AFTER_INVALID", "ALERTS_INVALID", "COMMUNICATION_SLOW",
                                          "LONG_RUN", "MIN_RANKS_MEMORY", "MIN_RANKS_NOT_DIVISIBLE",
                                          "NOT_BEFORE_INVALID", "SAMPLE_IMPOSSIBLE", "SAMPLE_RANGE",
                                          "SAMPLE_SLOW", "SAMPLE_UNUSED"));
}

TEST(Preflight, AcceptsTheGoodJobWithNothingButItsLength) {
  GoodJob job;
  const v1::PreflightReport report = job.Check();
  EXPECT_TRUE(report.accepted()) << report.DebugString();
  EXPECT_EQ(report.policy(), v1::PREFLIGHT_POLICY_PRODUCTION);
  ASSERT_EQ(report.findings_size(), 1) << report.DebugString();
  EXPECT_EQ(report.findings(0).rule(), "LONG_RUN");
  EXPECT_THAT(report.findings(0).problem(), testing::AllOf(HasSubstr("5,000 steps are about "),
                                                           HasSubstr(" and 20,480,000 tokens")));
}

// Of what an invalid value would lead to nothing is said, of other mistakes everything.
TEST(Preflight, AnInvalidValueIsOneFinding) {
  struct Invalid {
    const char* rule;
    std::function<void(GoodJob*)> break_it;
  };
  const Invalid cases[] = {
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_steps(0); }},
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_lr(50); }},
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_batch_size(0); }},
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_batch_size(99'999'999); }},
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_save_every(-1); }},
      {"TRAIN_RANGE", [](GoodJob* job) { Train(job)->set_warmup_steps(99'999'999'999); }},
      {"MODEL_RANGE", [](GoodJob* job) { job->spec.mutable_model()->set_vocab(1); }},
      {"RESOURCES_RANGE", [](GoodJob* job) { job->spec.mutable_resources()->set_gpus(0); }},
      {"RESOURCES_RANGE", [](GoodJob* job) { job->spec.mutable_resources()->set_nodes(99'999); }},
      {"RESTART_RANGE",
       [](GoodJob* job) { job->spec.mutable_restart()->set_hang_timeout_seconds(0); }},
      {"PREFLIGHT_RANGE",
       [](GoodJob* job) { job->spec.mutable_preflight()->set_max_lost_seconds(1); }}};
  for (const Invalid& invalid : cases) {
    GoodJob job;
    invalid.break_it(&job);
    v1::PreflightReport report = job.Check();
    ASSERT_NE(FindingOf(report, invalid.rule), nullptr) << report.DebugString();
    EXPECT_LE(report.findings_size(), FindingOf(report, "LONG_RUN") == nullptr ? 1 : 2)
        << report.DebugString();
    job.spec.mutable_runtime()->set_gradient_checkpointing(false);
    job.spec.set_name("Not A Name");
    report = job.Check();
    EXPECT_NE(FindingOf(report, invalid.rule), nullptr);
    EXPECT_NE(FindingOf(report, "NAME_INVALID"), nullptr);
  }
}

TEST(Preflight, OrdersErrorsThenWarningsThenNotes) {
  GoodJob job;
  Train(&job)->set_eval_every(0);                                 // warning
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);  // error
  const v1::PreflightReport report = job.Check();
  for (int i = 1; i < report.findings_size(); ++i) {
    EXPECT_GE(report.findings(i - 1).severity(), report.findings(i).severity());
  }
  EXPECT_EQ(report.findings(0).rule(), "GRADIENT_CHECKPOINTING_OFF");
}

TEST(Preflight, LooksAtNoFilesUnlessToldTo) {
  GoodJob job;
  job.context.check_files = false;
  Data(&job)->set_path(0, "/nowhere/train.txt");
  Data(&job)->set_val_path(0, "/nowhere/val.txt");
  Train(&job)->set_out_dir("/nowhere/out");
  EXPECT_TRUE(job.Check().accepted());
}

TEST(Preflight, SurvivesNumbersThatNoRuleExpects) {
  std::mt19937 random(1);
  const int64_t extremes[] = {0, -1, 1, 7, 1 << 30, INT32_MAX, INT32_MIN};
  const auto pick = [&] { return static_cast<int32_t>(extremes[random() % std::size(extremes)]); };
  for (int round = 0; round < 2000; ++round) {
    v1::JobSpec spec;
    for (const char* section : {"model", "nsa", "train", "resources", "data", "restart", "guard"}) {
      auto* message = spec.GetReflection()->MutableMessage(
          &spec, spec.GetDescriptor()->FindFieldByName(section));
      for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
        const auto* field = message->GetDescriptor()->field(i);
        if (field->is_repeated() || random() % 2 == 0) continue;
        if (field->cpp_type() == field->CPPTYPE_INT32) {
          message->GetReflection()->SetInt32(message, field, pick());
        } else if (field->cpp_type() == field->CPPTYPE_INT64) {
          message->GetReflection()->SetInt64(message, field, pick());
        }
      }
    }
    MachineView machine;
    machine.gpus.push_back({"GPU", 1, 1, 80});
    machine.cuda_worker = round % 2 == 0;
    PreflightContext context;
    context.machine = &machine;
    FormatReport(Preflight(spec, context), "x.yaml");
  }
}

TEST(Preflight, NamesMayHaveUnderscores) {
  GoodJob job;
  for (const char* name : {"m7c_125m", "a_", "_a", "a__b", "a-_b"}) {
    job.spec.set_name(name);
    const bool good = name[0] != '_' && std::string_view(name).back() != '_';
    EXPECT_EQ(FindingOf(job.Check(), "NAME_INVALID") == nullptr, good) << name;
  }
}

// The other half, that kernels accept what NsaShape accepts, is in tests/kernels.
TEST(Preflight, AcceptsAShapeExactlyWhenNsaShapeDoes) {
  std::mt19937 random(7);
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  int accepted = 0;
  constexpr int kRounds = 5000;
  for (int round = 0; round < kRounds; ++round) {
    v1::JobSpec spec;
    spec.set_name("shape");
    spec.mutable_train()->set_out_dir("/out");
    spec.mutable_train()->set_steps(10);
    const bool cuda = round % 2 == 1;
    spec.mutable_runtime()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
    spec.mutable_train()->set_batch_size(one_of({1, 2, 3, 64, 100000}));
    spec.mutable_train()->set_seq_len(one_of({1, 17, 128, 2048, 65536, 1 << 20, (1 << 20) + 1, 0}));
    v1::ModelSpec* model = spec.mutable_model();
    model->set_n_kv_groups(one_of({1, 2, 3, 4}));
    model->set_n_heads(one_of({1, 2, 4, 6, 8, 12, 64, 68}));
    model->set_d_k(one_of({16, 32, 64, 128, 192, 15, 256}));
    model->set_d_v(one_of({16, 32, 64, 128, 192, 0}));
    v1::NsaSpec* nsa = spec.mutable_nsa();
    nsa->set_d(one_of({1, 2, 4, 8, 16, 16, 3, 0}));
    nsa->set_l(one_of({1, 8, 16, 32, 32, 128, 144, 30}));
    nsa->set_l_sel(one_of({1, 16, 32, 64, 64, 256, 272}));
    nsa->set_n_sel(one_of({2, 3, 8, 16, 64, 65}));
    nsa->set_w(one_of({0, 1, 64, 512, 1 << 20}));
    model->set_dim(one_of({256, 768, 760, 100, 257}));
    const NsaShape shape = ShapeOf(spec);
    const bool valid =
        cuda ? shape.ValidateOnCuda().ok() && model->dim() % 8 == 0 : shape.Validate().ok();
    // At a launch, so that no rule looks at the length of the run.
    const v1::PreflightReport report = Preflight(spec, {.job_id = "jshape"});
    EXPECT_EQ(report.accepted(), valid) << shape.ToString() << " dim " << model->dim() << "\n"
                                        << FormatReport(report, "") << shape.ValidateOnCuda();
    accepted += valid ? 1 : 0;
  }
  EXPECT_GT(accepted, kRounds / 50);  // both sides are reached
  EXPECT_LT(accepted, kRounds / 2);
}

}  // namespace
}  // namespace nsa
