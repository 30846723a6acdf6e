// Small jobs for the tests of the trainer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "common/job/load.h"
#include "nsa/v1/job.pb.h"

namespace nsa::train {

// Two layers, 24 tokens, all branches in use: S_cmp = 5 with l = 8 and stride 4, S_sel = 3, w < S.
inline v1::JobSpec TinyJob() {
  v1::JobSpec spec;
  spec.set_name("tiny");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_dim(32);
  model.set_n_layers(2);
  model.set_n_heads(4);
  model.set_n_kv_groups(2);
  model.set_d_k(16);
  model.set_d_v(16);
  model.set_mlp_ratio(2);
  model.set_vocab(11);
  v1::NsaSpec& nsa = *spec.mutable_nsa();
  nsa.set_l(8);
  nsa.set_d(4);
  nsa.set_l_sel(8);
  nsa.set_n_sel(3);
  nsa.set_w(6);
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_seq_len(24);
  train.set_batch_size(2);
  train.set_steps(10);
  train.set_lr(1e-2);
  train.set_seed(7);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  ApplyDefaults(&spec);
  return spec;
}

// Sets nsa.layers, in place of nsa.branches.
inline void SetLayers(v1::JobSpec* spec, std::initializer_list<const char*> layers) {
  spec->mutable_nsa()->clear_branches();
  for (const char* const entry : layers) spec->mutable_nsa()->add_layers(entry);
}

// Turns on everything that models of other families (Llama, Qwen) have and the default does not.
inline void UseAllOfOtherFamilies(v1::JobSpec* spec) {
  v1::ModelSpec& model = *spec->mutable_model();
  model.set_norm_eps(1e-3);
  model.set_mlp(v1::MLP_SWIGLU);
  model.set_mlp_dim(48);
  model.set_tie_embeddings(true);
  model.set_qkv_bias(true);
  model.set_qk_norm(true);
  model.set_qk_norm_weights(true);
  v1::RopeScaling& scaling = *model.mutable_rope_scaling();
  scaling.set_type(v1::ROPE_SCALING_TYPE_LLAMA3);
  scaling.set_factor(8);
  scaling.set_original_seq_len(64);
  ApplyDefaults(spec);
}

// `count` tokens below `vocab`, a fixed function of `seed`.
inline std::vector<int32_t> TinyTokens(int64_t count, int32_t vocab, uint32_t seed) {
  std::vector<int32_t> tokens(count);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab));
  }
  return tokens;
}

}  // namespace nsa::train
