// A job that preflight accepts on any machine.
#pragma once

#include <filesystem>
#include <string>

#include "nsa/v1/job.pb.h"
#include "tests/testing/waive_length.h"

namespace nsa {

inline v1::JobSpec TinyJob(const std::string& name, const std::filesystem::path& out_dir,
                           int ranks = 1) {
  v1::JobSpec spec;
  spec.set_name(name);
  v1::ModelSpec* model = spec.mutable_model();
  model->set_dim(32);
  model->set_n_layers(2);
  model->set_n_heads(4);
  model->set_n_kv_groups(2);
  model->set_d_k(16);
  model->set_d_v(16);
  v1::NsaSpec* nsa = spec.mutable_nsa();
  nsa->set_l(8);
  nsa->set_d(4);
  nsa->set_l_sel(16);
  nsa->set_n_sel(4);
  nsa->set_w(16);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(20);
  train->set_seq_len(64);
  train->set_batch_size(4);
  train->set_lr(1e-3);
  train->set_save_every(5);
  train->set_out_dir(out_dir.string());
  spec.mutable_resources()->set_gpus(ranks);
  spec.mutable_restart()->set_backoff_seconds(1);
  spec.mutable_restart()->set_hang_timeout_seconds(60);
  spec.mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_EXPERIMENT);
  return spec;
}

}  // namespace nsa
