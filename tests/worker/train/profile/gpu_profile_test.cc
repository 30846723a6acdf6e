// Traces of whole runs on a GPU. With CUPTI a trace without kernels fails the test; without it the
// trace must say why there are none, and the test of the kernels is skipped.
#include <cstdlib>
#include <fstream>
#include <set>

#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "kernels/cuda/device.h"
#include "tests/worker/train/profile/read_trace.h"
#include "tests/worker/train/run_job.h"
#include "tests/worker/train/tiny_job.h"

namespace nsa::train {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A GPU's clock is mapped to the host's by interpolation.
constexpr double kClockMicroseconds = 200;

v1::JobSpec Job(const TempDir& dir, const std::string& out, bool graph) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_dim(64);
  spec.mutable_nsa()->set_n_sel(4);
  spec.mutable_nsa()->set_w(24);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
  spec.mutable_runtime()->set_cuda_graphs(graph);
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_seq_len(128);
  train.set_batch_size(4);
  train.set_steps(12);
  train.set_save_every(12);
  train.set_eval_every(0);
  train.set_out_dir(dir / out);
  return spec;
}

std::string Weights(const std::filesystem::path& out_dir) {
  std::ifstream in(CheckpointsDir(out_dir) / CheckpointName(12) / "model.safetensors",
                   std::ios::binary);
  EXPECT_TRUE(in) << out_dir;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<double> Losses(const RankResult& result) {
  std::vector<double> losses;
  for (const v1::StepRecord& step : result.steps) losses.push_back(step.loss());
  return losses;
}

std::string Missing() {
  const char* const file = std::getenv("NSA_CUPTI_LIBRARY");
  const auto recorder = OpenGpuRecorder(file == nullptr ? "" : file);
  return recorder.ok() ? "" : std::string(recorder.status().message());
}

class GpuProfile : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }

  RankResult Run(const std::string& out, bool traced) {
    RunOptions options = {.generation = ++generation_};
    if (traced) {
      options.before = [](int, Trainer* trainer) {
        v1::ProfileRequest request;
        request.set_id("t");
        request.set_steps(3);
        ASSERT_TRUE(trainer->RequestProfile(request).ok());
      };
    }
    RankResult result = RunJob(dir_, Job(dir_, out, GetParam()), options)[0];
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    if (traced) trace_ = ReadTrace(RunDir{RunFolder(dir_, options, 0)}.profile("t"));
    return result;
  }

  const TempDir dir_;
  int64_t generation_ = 0;
  json trace_;
};

TEST_P(GpuProfile, ChangesNoBitAndRecordsWholeSteps) {
  const RankResult plain = Run("plain", false);
  const RankResult traced = Run("traced", true);
  EXPECT_EQ(Losses(plain), Losses(traced));
  EXPECT_TRUE(Weights(dir_ / "plain") == Weights(dir_ / "traced"));
  for (const v1::StepRecord& step : traced.steps) {
    EXPECT_TRUE(step.fallbacks().empty()) << step.DebugString();
  }
  // All ranks agree in step 1; step 2 prepares.
  const std::vector<json> steps = RangesOf(trace_, "step");
  EXPECT_THAT(NamesOf(steps), ElementsAre("step 3", "step 4", "step 5"));
  for (const json& phase : RangesOf(trace_, "phase")) EXPECT_TRUE(IsInside(phase, steps)) << phase;
  std::set<std::string> gauges;
  for (const json& event : trace_["traceEvents"]) {
    if (event["ph"] == "C") gauges.insert(event["name"]);
  }
  EXPECT_THAT(gauges, ElementsAre("GPU memory in use", "host memory"));
  if (!Missing().empty()) {
    ASSERT_THAT(trace_["otherData"]["notes"], SizeIs(1));
    EXPECT_THAT(trace_["otherData"]["notes"][0].get<std::string>(), HasSubstr("no kernels: CUPTI"));
  }
}

TEST_P(GpuProfile, HasEveryKernelOfEveryStepWithItsLaunch) {
  if (const std::string missing = Missing(); !missing.empty()) GTEST_SKIP() << missing;
  const RankResult result = Run("out", true);
  EXPECT_THAT(trace_["otherData"]["notes"], IsEmpty());
  const std::vector<json> steps = RangesOf(trace_, "step");
  const std::vector<json> kernels = RangesOf(trace_, "gpu_kernel");
  ASSERT_THAT(kernels, Not(IsEmpty()));
  double in_graph = 0;
  std::map<std::string, std::map<std::string, int>> of_step;  // step → kernel → launches
  for (const json& kernel : kernels) {
    EXPECT_TRUE(IsInside(kernel, steps, kClockMicroseconds)) << kernel;
    EXPECT_GT(kernel["dur"], 0);
    EXPECT_GT(kernel["args"]["grid"][0], 0);
    EXPECT_GT(kernel["args"]["block"][0], 0);
    EXPECT_GT(kernel["args"]["registers"], 0);
    in_graph += kernel["args"]["graph_node"] != 0 ? 1 : 0;
    for (const json& step : steps) {
      const double middle = kernel["ts"].get<double>() + kernel["dur"].get<double>() / 2;
      const double begin = step["ts"], end = begin + step["dur"].get<double>();
      if (begin <= middle && middle < end) ++of_step[step["name"]][kernel["name"]];
    }
  }
  // In a graph each kernel is one of its nodes; only few run outside.
  if (GetParam()) {
    EXPECT_GT(in_graph, 0.9 * static_cast<double>(kernels.size()));
  } else {
    EXPECT_EQ(in_graph, 0);
  }
  ASSERT_EQ(of_step.size(), 3u);
  EXPECT_EQ(of_step["step 3"], of_step["step 4"]);
  EXPECT_EQ(of_step["step 4"], of_step["step 5"]);
  const auto has = [&](const std::string& part) {
    return std::ranges::any_of(of_step["step 4"], [&](const auto& entry) {
      return entry.first.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(has("nsa::cuda::")) << "kernels have the names of the source";
  EXPECT_THAT(RangesOf(trace_, "gpu_copy"), Not(IsEmpty())) << "a batch goes to the GPU";
  EXPECT_EQ(result.steps.size(), 12u);
}

INSTANTIATE_TEST_SUITE_P(Modes, GpuProfile, ::testing::Values(true, false),
                         [](const auto& mode) { return mode.param ? "Graph" : "KernelByKernel"; });

}  // namespace
}  // namespace nsa::train
