// The defaults of the job file, and the values that depend on the machine.
// tests/common/job/load_job_file_test.cc compares docs/job_file.md with this file.
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"
#include "common/job/load.h"

namespace nsa {
namespace {

// Sets a field that is absent from the file.
#define NSA_DEFAULT_(message, field, value) \
  if (!(message)->has_##field()) (message)->set_##field(value)

// Absent stands for 0 in keys that are newer than the first workers, so that these take the job,
// and so that it is the same job with and without the key.
#define NSA_ABSENT_IF_ZERO_(message, field) \
  if ((message)->field() == 0) (message)->clear_##field()

void RopeScalingDefaults(v1::RopeScaling* scaling) {
  if (scaling->type() == v1::ROPE_SCALING_TYPE_LLAMA3) {
    NSA_DEFAULT_(scaling, low_freq_factor, 1.0);
    NSA_DEFAULT_(scaling, high_freq_factor, 4.0);
  } else if (scaling->type() == v1::ROPE_SCALING_TYPE_YARN) {
    NSA_DEFAULT_(scaling, beta_fast, 32.0);
    NSA_DEFAULT_(scaling, beta_slow, 1.0);
  }
}

void ModelDefaults(v1::ModelSpec* model) {
  NSA_DEFAULT_(model, dim, 768);
  NSA_DEFAULT_(model, n_layers, 12);
  NSA_DEFAULT_(model, n_heads, 12);
  NSA_DEFAULT_(model, n_kv_groups, 2);
  NSA_DEFAULT_(model, d_k, 64);
  NSA_DEFAULT_(model, d_v, 64);
  NSA_DEFAULT_(model, rope_base, 10000.0);
  NSA_DEFAULT_(model, rope_scale, 1.0);
  NSA_DEFAULT_(model, mlp_ratio, 4);
  NSA_ABSENT_IF_ZERO_(model, mlp_dim);
  NSA_ABSENT_IF_ZERO_(model, tie_embeddings);
  NSA_ABSENT_IF_ZERO_(model, qkv_bias);
  NSA_ABSENT_IF_ZERO_(model, qk_norm_weights);
  if (model->has_rope_scaling()) RopeScalingDefaults(model->mutable_rope_scaling());
  if (model->mlp() == v1::MLP_PLAIN) model->clear_mlp();
  if (model->rope_layers() == v1::ROPE_LAYERS_ALL) model->clear_rope_layers();
  if (model->norm_eps() == kDefaultNormEps) model->clear_norm_eps();
}

void NsaDefaults(v1::NsaSpec* nsa) {
  NSA_DEFAULT_(nsa, l, 32);
  NSA_DEFAULT_(nsa, d, 16);
  NSA_DEFAULT_(nsa, l_sel, 64);
  NSA_DEFAULT_(nsa, n_sel, 16);
  NSA_DEFAULT_(nsa, w, 512);
  if (nsa->phi() == v1::PHI_UNSPECIFIED) nsa->set_phi(v1::PHI_MLP);
  if (nsa->gate() == v1::GATE_UNSPECIFIED) nsa->set_gate(v1::GATE_SIGMOID);
  if (nsa->branches().empty() && nsa->layers().empty()) {
    nsa->add_branches(v1::BRANCH_CMP);
    nsa->add_branches(v1::BRANCH_SEL);
    nsa->add_branches(v1::BRANCH_WIN);
  }
  NSA_DEFAULT_(nsa, audit_every, 100);
}

void DataDefaults(v1::DataSpec* data) {
  const bool mixed = !data->mix().empty();
  if (data->source() == v1::DATA_SOURCE_UNSPECIFIED && !mixed) {
    data->set_source(v1::DATA_SOURCE_SYNTHETIC);
  }
  // The tokens of token files come from a tokenizer that only the job's owner knows.
  if (data->tokenizer() == v1::TOKENIZER_UNSPECIFIED && !ReadsOnlyTokens(*data)) {
    data->set_tokenizer(v1::TOKENIZER_BYTE);
  }
  if (data->on_exhausted() == v1::ON_EXHAUSTED_UNSPECIFIED) {
    data->set_on_exhausted(v1::ON_EXHAUSTED_REPEAT);
  }
  // Generated tokens never run out, so validation uses other generated rows and nothing is held
  // out.
  const bool files = mixed || DataSourceInfoOf(data->source()).has_files();
  const bool hold_out = data->val_path().empty() && files;
  NSA_DEFAULT_(data, val_fraction, hold_out ? 0.01 : 0.0);
  NSA_DEFAULT_(data, document_mask, false);
  NSA_DEFAULT_(data, loader_timeout_seconds, 60.0);
  NSA_DEFAULT_(data, allow_synthetic_fallback, false);
  NSA_ABSENT_IF_ZERO_(data, stream);
  if (data->stream()) NSA_DEFAULT_(data, shuffle_window, 8192);
}

void RuntimeDefaults(v1::RuntimeSpec* runtime) {
  if (runtime->device() == v1::DEVICE_UNSPECIFIED) runtime->set_device(v1::DEVICE_AUTO);
  NSA_DEFAULT_(runtime, gradient_checkpointing, false);
  NSA_DEFAULT_(runtime, cuda_graphs, true);
}

void TrainDefaults(v1::TrainSpec* train) {
  NSA_DEFAULT_(train, steps, 1000);
  NSA_DEFAULT_(train, seq_len, 2048);
  NSA_DEFAULT_(train, batch_size, 2);
  NSA_DEFAULT_(train, accumulate_grad_batches, 1);
  NSA_DEFAULT_(train, lr, 2e-4);
  NSA_DEFAULT_(train, min_lr_ratio, 0.1);
  if (train->lr_schedule() == v1::LR_SCHEDULE_UNSPECIFIED) {
    train->set_lr_schedule(v1::LR_SCHEDULE_COSINE);
  }
  NSA_DEFAULT_(train, warmup_steps, 0);
  NSA_DEFAULT_(train, weight_decay, 0.1);
  if (train->betas().empty()) {
    train->add_betas(0.9);
    train->add_betas(0.95);
  }
  NSA_DEFAULT_(train, grad_clip, 1.0);
  NSA_DEFAULT_(train, log_every, 20);
  NSA_DEFAULT_(train, eval_every, 0);
  NSA_DEFAULT_(train, eval_batches, 10);
  NSA_DEFAULT_(train, save_every, 0);
  NSA_DEFAULT_(train, keep_checkpoints, 3);
  NSA_DEFAULT_(train, seed, 1337);
}

void RestartDefaults(v1::RestartSpec* restart) {
  NSA_DEFAULT_(restart, max_restarts, 5);
  NSA_DEFAULT_(restart, backoff_seconds, 15.0);
  NSA_DEFAULT_(restart, hang_timeout_seconds, 600.0);
  NSA_DEFAULT_(restart, resume, "auto");
  NSA_DEFAULT_(restart, max_no_progress, 3);
  NSA_DEFAULT_(restart, stop_grace_seconds, 30.0);
}

void GuardDefaults(v1::GuardSpec* guard) {
  NSA_DEFAULT_(guard, after_steps, 100);
  NSA_DEFAULT_(guard, max_consecutive_nonfinite, 3);
  NSA_DEFAULT_(guard, max_gate_collapse, 0.5);
  // Absent stands for true, as above.
  if (guard->stop_on_divergence()) guard->clear_stop_on_divergence();
}

// Only where texts are wanted: older workers refuse a section that they do not know.
void SampleDefaults(v1::JobSpec* spec) {
  const v1::SampleSpec& set = spec->sample();
  if (set.prompts().empty()) {
    if (!set.has_tokens() && !set.has_temperature()) spec->clear_sample();
    return;
  }
  NSA_DEFAULT_(spec->mutable_sample(), tokens, 64);
  NSA_DEFAULT_(spec->mutable_sample(), temperature, 0.8);
}

}  // namespace

void ApplyDefaults(v1::JobSpec* spec) {
  NSA_DEFAULT_(spec, priority, 0);
  ModelDefaults(spec->mutable_model());
  NormalizeLayers(spec->model().n_layers(), spec->mutable_nsa());
  NsaDefaults(spec->mutable_nsa());
  DataDefaults(spec->mutable_data());
  RuntimeDefaults(spec->mutable_runtime());
  TrainDefaults(spec->mutable_train());
  NSA_DEFAULT_(spec->mutable_resources(), gpus, 1);
  NSA_DEFAULT_(spec->mutable_resources(), nodes, 1);
  RestartDefaults(spec->mutable_restart());
  GuardDefaults(spec->mutable_guard());
  SampleDefaults(spec);
  spec->mutable_model()->set_vocab(VocabOf(*spec));
}

void ResolveDevice(bool has_gpu, v1::JobSpec* spec) {
  v1::RuntimeSpec* runtime = spec->mutable_runtime();
  if (runtime->device() == v1::DEVICE_UNSPECIFIED || runtime->device() == v1::DEVICE_AUTO) {
    runtime->set_device(has_gpu ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
  }
  if (runtime->precision() == v1::PRECISION_UNSPECIFIED) {
    const bool cuda = runtime->device() == v1::DEVICE_CUDA;
    runtime->set_precision(cuda ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
  }
  if (runtime->device() != v1::DEVICE_CUDA) return;
  NSA_DEFAULT_(runtime, merge_micro_batches, DefaultMerge(*spec));
  if (runtime->shard() == v1::SHARD_UNSPECIFIED && DefaultShards(*spec)) {
    NSA_DEFAULT_(runtime, shard_optimizer, true);
  }
}
#undef NSA_ABSENT_IF_ZERO_
#undef NSA_DEFAULT_

}  // namespace nsa
