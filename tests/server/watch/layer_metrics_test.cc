// The metrics of layers with different branches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/watch/metrics.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A step of a model with nsa.layers: [win, cmp+sel].
v1::WorkerRecord Step() {
  v1::WorkerRecord record;
  v1::StepRecord* step = record.mutable_step();
  step->set_step(1);
  v1::LayerStats* window = step->add_layers();
  window->mutable_audit()->set_window_mass(0.25);
  v1::LayerStats* others = step->add_layers();
  others->set_layer(1);
  others->mutable_gate()->set_entropy_mean(0.5);
  others->mutable_audit()->set_selected_mass(0.75);
  v1::SelectionChoice* choice = others->mutable_audit()->mutable_choice();
  choice->set_rows(8);
  choice->set_free_choices(4);
  choice->set_entropy_ratio(0.5);
  return record;
}

TEST(LayerMetrics, ALayerHasNoSeriesOfAGateOrABranchThatItLacks) {
  FakeClock clock;
  Metrics metrics(clock);
  v1::Job job;
  job.set_id("j1");
  job.set_state(v1::Job::STATE_RUNNING);
  *job.mutable_spec() = TinyJob("demo", "/nowhere", 1);
  metrics.ObserveRecords(job, 0, {Step()});
  const std::string text = metrics.Text();
  for (const char* family :
       {"nsa_gate_entropy", "nsa_gate_collapse_ratio", "nsa_selection_entropy_ratio"}) {
    const std::string series = std::string(family) + "{job_id=\"j1\",layer=";
    EXPECT_THAT(text, HasSubstr(series + "\"1\"}"));
    EXPECT_THAT(text, Not(HasSubstr(series + "\"0\"}")));
  }
  const std::string kept = "nsa_job_attention_mass_kept{branch=";
  EXPECT_THAT(text, HasSubstr(kept + "\"win\",job_id=\"j1\",layer=\"0\"} 0.25"));
  EXPECT_THAT(text, HasSubstr(kept + "\"sel\",job_id=\"j1\",layer=\"1\"} 0.75"));
  EXPECT_THAT(text, Not(HasSubstr(kept + "\"sel\",job_id=\"j1\",layer=\"0\"}")));
  EXPECT_THAT(text, Not(HasSubstr(kept + "\"win\",job_id=\"j1\",layer=\"1\"}")));
  // Without a window nothing can overlap with it: the ratio would always be 0.
  EXPECT_THAT(text, Not(HasSubstr("nsa_selection_window_overlap_ratio{")));
}

// layer_series: false in coordinator.yaml.
TEST(LayerMetrics, WithoutSeriesOfLayersTheOthersStay) {
  FakeClock clock;
  Metrics metrics(clock, false);
  v1::Job job;
  job.set_id("j1");
  job.set_state(v1::Job::STATE_RUNNING);
  *job.mutable_spec() = TinyJob("demo", "/nowhere", 1);
  metrics.ObserveRecords(job, 0, {Step()});
  const std::string text = metrics.Text();
  EXPECT_THAT(text, Not(HasSubstr("layer=\"")));
  EXPECT_THAT(text, HasSubstr("job_id=\"j1\""));
}

}  // namespace
}  // namespace nsa::server
