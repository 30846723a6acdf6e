// A running job and the records of its ranks.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/store.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "tests/server/tiny_job.h"

namespace nsa::server {

inline v1::StoredJob JobThatRuns(const std::string& id, int ranks) {
  v1::StoredJob job;
  job.mutable_job()->set_id(id);
  job.mutable_job()->set_name("demo");
  job.mutable_job()->set_state(v1::Job::STATE_RUNNING);
  *job.mutable_job()->mutable_spec() = TinyJob("demo", "/nowhere", ranks);
  return job;
}

inline v1::WorkerRecord Step(int64_t step, int layers = 2) {
  v1::WorkerRecord record;
  record.set_unix_nanos(1'500'000'000);
  v1::StepRecord* body = record.mutable_step();
  body->set_step(step);
  body->set_loss(3.5);
  body->set_tokens(256);
  body->mutable_times()->set_step_seconds(0.2);
  body->mutable_times()->set_forward_seconds(0.05);
  (*body->mutable_fallbacks())["cuda_graph"] = step;
  for (int i = 0; i < layers; ++i) {
    v1::LayerStats* layer = body->add_layers();
    layer->set_layer(i);
    layer->mutable_gate()->set_entropy_mean(1.0);
    for (const double share : {0.2, 0.3, 0.5}) layer->mutable_gate()->add_branch_share(share);
    if (step == 1) {
      layer->mutable_audit()->set_selected_mass(0.75);
      layer->mutable_audit()->set_window_mass(0.25);
      v1::SelectionChoice* choice = layer->mutable_audit()->mutable_choice();
      choice->set_rows(8);
      choice->set_free_choices(4);
      choice->set_entropy_ratio(0.9);
    }
    for (const int64_t keys : {10, 20, 30}) {
      layer->add_keys_read(keys);
      layer->add_keys_expected(keys);
    }
  }
  return record;
}

inline v1::WorkerRecord Checkpoint(int64_t step, const std::string& error = "") {
  v1::WorkerRecord record;
  record.mutable_checkpoint()->set_step(step);
  record.mutable_checkpoint()->set_bytes(1'000);
  record.mutable_checkpoint()->set_write_seconds(2);
  record.mutable_checkpoint()->set_error(error);
  return record;
}

}  // namespace nsa::server
