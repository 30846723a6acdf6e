// Compares the gradient norm in the telemetry with the gradient that the optimizer used: after one
// step AdamW's first moment is (1 - beta1) times the clipped gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "tests/worker/train/run_job.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/checkpoint/safetensors.h"

namespace nsa::train {
namespace {

// Results of one step with a given clip: the norm in the step's record, and the norm of the
// gradient that AdamW used.
struct Norms {
  double reported = 0;
  double applied = 0;
};

Norms AfterOneStep(double grad_clip) {
  const TempDir dir;
  v1::JobSpec spec = TinyJob();
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_train()->set_out_dir(dir / "out");
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->set_warmup_steps(0);
  spec.mutable_train()->set_grad_clip(grad_clip);
  const RankResult result = RunJob(dir, spec)[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  if (result.steps.size() != 1) return {};

  const auto file = SafetensorsFile::Open(CheckpointsDir(dir / "out") / CheckpointName(1) /
                                          "optimizer-00000-of-00001.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  const SafetensorsFile::Tensor& stored = (*file)->tensors().at("exp_avg");
  std::vector<float> moment(stored.size);
  EXPECT_TRUE((*file)->ReadBytes(stored, 0, std::as_writable_bytes(std::span(moment))).ok());
  double squares = 0;
  for (const float value : moment) squares += static_cast<double>(value) * value;
  return {.reported = result.steps[0].grad_norm(),
          .applied = std::sqrt(squares) / (1 - spec.train().betas(0))};
}

TEST(Clipping, WithoutItTheReportedNormIsThatOfTheGradient) {
  const Norms norms = AfterOneStep(0);
  EXPECT_GT(norms.reported, 0);
  EXPECT_NEAR(norms.applied, norms.reported, 1e-5 * norms.reported);
}

TEST(Clipping, TheReportedNormIsTheOneBeforeItAndTheAppliedOneIsTheLimit) {
  const Norms free = AfterOneStep(0);
  const double limit = free.reported / 4;
  const Norms clipped = AfterOneStep(limit);
  EXPECT_EQ(clipped.reported, free.reported);
  EXPECT_NEAR(clipped.applied, limit, 1e-5 * limit);
}

}  // namespace
}  // namespace nsa::train
