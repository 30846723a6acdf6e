// A model of about 50,000 parameters, for tests of checkpoints and of whole jobs.
#pragma once

#include "nsa/v1/job.pb.h"

namespace nsa {

inline v1::JobSpec SmallModel() {
  v1::JobSpec spec;
  v1::ModelSpec* model = spec.mutable_model();
  model->set_dim(32);
  model->set_n_layers(2);
  model->set_n_heads(2);
  model->set_n_kv_groups(1);
  model->set_d_k(16);
  model->set_d_v(16);
  model->set_mlp_ratio(4);
  model->set_vocab(256);
  return spec;
}

}  // namespace nsa
