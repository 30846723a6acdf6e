// Whole runs on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/memory/memory.h"
#include "kernels/cuda/device.h"
#include "tests/worker/train/run_job.h"
#include "tests/worker/train/tiny_job.h"

namespace nsa::train {
namespace {

v1::JobSpec Job(const TempDir& dir, const std::string& out = "out") {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_dim(64);
  spec.mutable_model()->set_vocab(64);
  spec.mutable_nsa()->set_n_sel(4);
  spec.mutable_nsa()->set_w(24);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_seq_len(128);
  train.set_batch_size(4);
  train.set_accumulate_grad_batches(2);
  train.set_steps(12);
  train.set_warmup_steps(3);
  train.set_lr(3e-3);
  train.set_eval_every(4);
  train.set_eval_batches(2);
  train.set_save_every(5);
  train.set_out_dir(dir / out);
  return spec;
}

class GpuTrainer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
  const TempDir dir_;
};

std::vector<double> Losses(const RankResult& result) {
  std::vector<double> losses;
  for (const v1::StepRecord& step : result.steps) losses.push_back(step.loss());
  return losses;
}

std::string Weights(const std::filesystem::path& out_dir, int64_t step) {
  std::ifstream in(CheckpointsDir(out_dir) / CheckpointName(step) / "model.safetensors",
                   std::ios::binary);
  EXPECT_TRUE(in) << out_dir << " " << step;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(GpuTrainer, TrainsToTheLastStepWithoutFallbacks) {
  const RankResult result = RunJob(dir_, Job(dir_))[0];
  ASSERT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  ASSERT_EQ(result.steps.size(), 12u);
  for (const v1::StepRecord& step : result.steps) {
    EXPECT_TRUE(std::isfinite(step.loss()) && step.grad_norm() > 0) << step.DebugString();
    EXPECT_TRUE(step.fallbacks().empty()) << step.DebugString();
    EXPECT_GT(step.times().forward_seconds(), 0);
    EXPECT_GT(step.times().backward_seconds(), 0);
    EXPECT_GT(step.memory_reserved_bytes(), step.memory_allocated_bytes());
    ASSERT_EQ(step.layers_size(), 2);
    for (const v1::LayerStats& layer : step.layers()) {
      EXPECT_THAT(layer.keys_read(), ::testing::ElementsAreArray(layer.keys_expected()));
    }
  }
  EXPECT_LT(result.steps.back().loss(), result.steps.front().loss());
  EXPECT_EQ(result.evals.size(), 3u);
}

TEST_F(GpuTrainer, AGraphChangesNoBit) {
  v1::JobSpec with = Job(dir_, "with"), without = Job(dir_, "without");
  without.mutable_runtime()->set_cuda_graphs(false);
  const RankResult graph = RunJob(dir_, with, {.generation = 1})[0];
  const RankResult eager = RunJob(dir_, without, {.generation = 2})[0];
  EXPECT_EQ(Losses(graph), Losses(eager));
  EXPECT_TRUE(Weights(dir_ / "with", 12) == Weights(dir_ / "without", 12));
}

// A model of another family, whose vocabulary is no multiple of a tile: its embedding, which is its
// head, has a gap behind it.
v1::JobSpec OtherFamily(const TempDir& dir, const std::string& out) {
  v1::JobSpec spec = Job(dir, out);
  UseAllOfOtherFamilies(&spec);
  spec.mutable_model()->set_vocab(67);
  return spec;
}

TEST_F(GpuTrainer, AGraphChangesNoBitOfAModelOfAnotherFamily) {
  for (const v1::Optimizer optimizer : {v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_MUON}) {
    SCOPED_TRACE(v1::Optimizer_Name(optimizer));
    const TempDir dir;
    v1::JobSpec with = OtherFamily(dir, "with"), without = OtherFamily(dir, "without");
    for (v1::JobSpec* const spec : {&with, &without}) {
      spec->mutable_train()->set_optimizer(optimizer);
    }
    without.mutable_runtime()->set_cuda_graphs(false);
    const RankResult graph = RunJob(dir, with, {.generation = 1})[0];
    const RankResult eager = RunJob(dir, without, {.generation = 2})[0];
    ASSERT_EQ(graph.steps.size(), 12u) << graph.finished.text();
    EXPECT_TRUE(graph.steps.back().fallbacks().empty()) << graph.steps.back().DebugString();
    EXPECT_EQ(Losses(graph), Losses(eager));
    EXPECT_TRUE(Weights(with.train().out_dir(), 12) == Weights(without.train().out_dir(), 12));
  }
}

// The hash of step 100 is computed between two launches of the graph.
TEST_F(GpuTrainer, HashesOfTheParametersNeitherDependOnAGraphNorDisturbIt) {
  const auto hashes_of = [&](const char* out, bool graph) {
    v1::JobSpec spec = Job(dir_, out);
    spec.mutable_train()->set_steps(103);
    spec.mutable_train()->set_save_every(0);
    spec.mutable_runtime()->set_cuda_graphs(graph);
    const TempDir runs;
    const RankResult result = RunJob(runs, spec)[0];
    std::map<int64_t, uint64_t> hashes;
    for (const v1::StepRecord& step : result.steps) {
      EXPECT_TRUE(step.fallbacks().empty()) << step.DebugString();
      if (step.has_parameters_hash()) hashes[step.step()] = step.parameters_hash();
    }
    return hashes;
  };
  const auto graph = hashes_of("graph", true);
  ASSERT_EQ(graph.size(), 2u);
  EXPECT_NE(graph.at(100), graph.at(103));
  EXPECT_EQ(hashes_of("eager", false), graph);
  setenv("NSA_TEST_FLIP_BIT_AT_STEP", "100,0", 1);
  const auto flipped = hashes_of("flipped", true);
  unsetenv("NSA_TEST_FLIP_BIT_AT_STEP");
  EXPECT_NE(flipped.at(100), graph.at(100));
  EXPECT_NE(flipped.at(103), graph.at(103));
}

// The same step up to the order of sums: a micro-batch that were lost or taken twice would move the
// first loss by about 0.01 and the norm by a third.
TEST_F(GpuTrainer, MergedMicroBatchesAreTheSameStep) {
  v1::JobSpec apart = Job(dir_, "apart"), merged = Job(dir_, "merged");
  for (v1::JobSpec* spec : {&apart, &merged}) {
    spec->mutable_train()->set_accumulate_grad_batches(4);
    spec->mutable_train()->set_eval_batches(3);  // the last of two passes is half empty
  }
  merged.mutable_runtime()->set_merge_micro_batches(2);
  const RankResult a = RunJob(dir_, apart, {.generation = 1})[0];
  const RankResult b = RunJob(dir_, merged, {.generation = 2})[0];
  ASSERT_EQ(a.steps.size(), 12u) << a.finished.text();
  ASSERT_EQ(b.steps.size(), 12u) << b.finished.text();
  EXPECT_NEAR(b.steps[0].loss(), a.steps[0].loss(), 1e-3);
  EXPECT_NEAR(b.steps[0].grad_norm(), a.steps[0].grad_norm(), 0.01 * a.steps[0].grad_norm());
  for (int i = 0; i < 12; ++i) EXPECT_NEAR(b.steps[i].loss(), a.steps[i].loss(), 0.02) << i;
  ASSERT_EQ(b.evals.size(), a.evals.size());
  for (size_t i = 0; i < a.evals.size(); ++i) {
    EXPECT_NEAR(b.evals[i].loss(), a.evals[i].loss(), 0.02) << i;
  }
  for (const v1::LayerStats& layer : b.steps.back().layers()) {
    EXPECT_THAT(layer.keys_read(), ::testing::ElementsAreArray(layer.keys_expected()));
  }
}

TEST_F(GpuTrainer, DocumentsUnderAGraphChangeNoBitAndHideWhatIsBeforeThem) {
  std::ofstream lines(dir_ / "train.jsonl");
  for (int i = 0; i < 400; ++i) {
    lines << R"({"text": ")" << std::string(1 + i * 37 % 150, static_cast<char>('a' + i % 26))
          << " " << i << "\"}\n";
  }
  lines.close();
  const auto job = [&](const char* out, bool graph, bool mask) {
    v1::JobSpec spec = Job(dir_, out);
    spec.mutable_model()->set_vocab(256);
    spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
    spec.mutable_data()->add_path(dir_ / "train.jsonl");
    spec.mutable_data()->set_document_mask(mask);
    spec.mutable_runtime()->set_cuda_graphs(graph);
    return spec;
  };
  const RankResult graph = RunJob(dir_, job("graph", true, true), {.generation = 1})[0];
  const RankResult eager = RunJob(dir_, job("eager", false, true), {.generation = 2})[0];
  const RankResult unmasked = RunJob(dir_, job("unmasked", true, false), {.generation = 3})[0];
  ASSERT_EQ(graph.steps.size(), 12u) << graph.finished.text();
  EXPECT_TRUE(graph.steps.back().fallbacks().empty()) << graph.steps.back().DebugString();
  EXPECT_EQ(Losses(graph), Losses(eager));
  EXPECT_TRUE(Weights(dir_ / "graph", 12) == Weights(dir_ / "eager", 12));
  EXPECT_NE(Losses(graph), Losses(unmasked));
  for (const v1::LayerStats& layer : graph.steps.back().layers()) {
    EXPECT_THAT(layer.keys_read(), ::testing::ElementsAreArray(layer.keys_expected()));
  }
}

// The device decides whether to update, from the second step on inside a graph.
// Micro-batches with other numbers of answers each, one after another and as one pass.
TEST_F(GpuTrainer, TheLossOfAnswersIsThatOfTheCpu) {
  std::ofstream file(dir_ / "chats.jsonl");
  for (int i = 0; i < 60; ++i) {
    file << R"({"prompt": "question )" << i << R"(", "completion": ")"
         << std::string(static_cast<size_t>(1 + i * 37 % 60), static_cast<char>('a' + i % 26))
         << "\"}\n";
  }
  file.close();
  const auto run = [&](const char* out, v1::Device device, int32_t merged, bool graph) {
    v1::JobSpec spec = Job(dir_, out);
    spec.mutable_model()->set_vocab(256);
    v1::DataSpec* const data = spec.mutable_data();
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->set_tokenizer(v1::TOKENIZER_BYTE);
    data->add_path(dir_ / "chats.jsonl");
    data->set_val_fraction(0.1);
    data->set_loss_on(v1::LOSS_ON_ASSISTANT);
    spec.mutable_runtime()->set_device(device);
    if (device == v1::DEVICE_CPU) spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
    spec.mutable_runtime()->set_merge_micro_batches(merged);
    spec.mutable_runtime()->set_cuda_graphs(graph);
    const TempDir runs;
    const RankResult result = RunJob(runs, spec)[0];
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    return result;
  };
  const RankResult cpu = run("cpu", v1::DEVICE_CPU, 1, false);
  const RankResult apart = run("apart", v1::DEVICE_CUDA, 1, true);
  const RankResult merged = run("merged", v1::DEVICE_CUDA, 2, true);
  for (const RankResult* gpu : {&apart, &merged}) {
    ASSERT_EQ(gpu->steps.size(), cpu.steps.size());
    for (size_t i = 0; i < cpu.steps.size(); ++i) {
      EXPECT_EQ(gpu->steps[i].answer_tokens(), cpu.steps[i].answer_tokens());
      EXPECT_NEAR(gpu->steps[i].loss(), cpu.steps[i].loss(), 0.02 * cpu.steps[i].loss()) << i;
    }
    EXPECT_NEAR(gpu->steps[0].grad_norm(), cpu.steps[0].grad_norm(),
                0.05 * cpu.steps[0].grad_norm());
    EXPECT_NEAR(gpu->evals[0].loss(), cpu.evals[0].loss(), 0.02 * cpu.evals[0].loss());
  }
  EXPECT_EQ(Losses(run("eager", v1::DEVICE_CUDA, 1, false)), Losses(apart));
}

TEST_F(GpuTrainer, SkipsNonFiniteStepsAndThenStops) {
  v1::JobSpec spec = Job(dir_);
  // The first update changes every weight to about 1e30; after that no loss is finite.
  spec.mutable_train()->set_lr(1e30);
  spec.mutable_train()->set_warmup_steps(0);
  spec.mutable_train()->set_eval_every(0);
  spec.mutable_guard()->set_max_consecutive_nonfinite(2);
  const RankResult result = RunJob(dir_, spec)[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(result.finished.reason(), "NONFINITE_LOSS") << result.finished.text();
  ASSERT_EQ(result.steps.size(), 4u) << "one good step, two skipped ones and one too many";
  EXPECT_FALSE(result.steps[0].skipped_nonfinite());
  for (int step = 1; step < 4; ++step) EXPECT_TRUE(result.steps[step].skipped_nonfinite()) << step;
  EXPECT_TRUE(result.HasEvent("NONFINITE_SKIPPED"));
}

TEST_F(GpuTrainer, GoesOnFromACheckpointWithTheSameBits) {
  for (const auto& job : {Job, OtherFamily}) {
    const TempDir dir;
    const v1::JobSpec unbroken = job(dir, "unbroken"), broken = job(dir, "broken");
    const RankResult whole = RunJob(dir, unbroken, {.generation = 1})[0];
    const auto stop_at_5 = [](int, Trainer* trainer) {
      v1::StopRequest stop;
      stop.set_mode(v1::STOP_MODE_AT_STEP);
      stop.set_at_step(5);
      EXPECT_TRUE(trainer->RequestStop(stop).ok());
    };
    RunJob(dir, broken, {.generation = 2, .before = stop_at_5});
    const RankResult rest = RunJob(dir, broken, {.generation = 3})[0];
    EXPECT_EQ(rest.started.resumed_step(), 5);
    const std::vector<double> all = Losses(whole);
    ASSERT_EQ(all.size(), 12u) << whole.finished.text();
    EXPECT_EQ(Losses(rest), std::vector<double>(all.begin() + 5, all.end()));
    EXPECT_TRUE(Weights(dir / "unbroken", 12) == Weights(dir / "broken", 12));
  }
}

// bf16 rounds weights and activations with 2^-9, 0.2 %, independently for every token. The losses
// of the two runs differ by at most two such roundings even after 50 updates, while the loss itself
// falls by more than a tenth.
void ExpectNearTheCpuFor50Steps(const TempDir& dir, v1::JobSpec gpu) {
  gpu.mutable_train()->set_steps(50);
  gpu.mutable_train()->set_eval_every(0);
  v1::JobSpec cpu = gpu;
  cpu.mutable_train()->set_out_dir(dir / "cpu");
  cpu.mutable_runtime()->set_device(v1::DEVICE_CPU);
  cpu.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  const std::vector<double> fast = Losses(RunJob(dir, gpu, {.generation = 1})[0]);
  const std::vector<double> truth = Losses(RunJob(dir, cpu, {.generation = 2})[0]);
  ASSERT_EQ(fast.size(), 50u);
  ASSERT_EQ(truth.size(), 50u);
  double worst = 0;
  for (size_t i = 0; i < 50; ++i) {
    worst = std::max(worst, std::abs(fast[i] / truth[i] - 1));
    EXPECT_NEAR(fast[i], truth[i], 0x1p-8 * truth[i]) << "step " << i + 1;
  }
  EXPECT_LT(truth[49], 0.9 * truth[0]);
  printf("loss %.4f to %.4f (CPU), %.4f (GPU); largest difference %.2e of the loss\n", truth[0],
         truth[49], fast[49], worst);
}

TEST_F(GpuTrainer, StaysNearTheCpuFor50Steps) { ExpectNearTheCpuFor50Steps(dir_, Job(dir_)); }

TEST_F(GpuTrainer, StaysNearTheCpuFor50StepsWithAModelOfAnotherFamily) {
  ExpectNearTheCpuFor50Steps(dir_, OtherFamily(dir_, "out"));
}

TEST_F(GpuTrainer, TakesTheMemoryThatTheEstimateSays) {
  struct {
    int seq_len, batch, layers;
    bool checkpointing;
  } const jobs[] = {
      {1024, 16, 8, true},
      {1024, 16, 8, false},
      {32768, 1, 2, true},  // much of it is the kernels' workspace
  };
  int64_t generation = 0;
  for (const auto& job : jobs) {
    v1::JobSpec spec = Job(dir_, std::to_string(++generation));
    spec.mutable_model()->set_dim(512);
    spec.mutable_model()->set_n_layers(job.layers);
    spec.mutable_model()->set_n_heads(8);
    spec.mutable_model()->set_d_k(64);
    spec.mutable_model()->set_d_v(64);
    spec.mutable_train()->set_seq_len(job.seq_len);
    spec.mutable_train()->set_batch_size(job.batch);
    spec.mutable_train()->set_steps(4);
    spec.mutable_train()->set_eval_every(0);
    spec.mutable_train()->set_save_every(0);
    spec.mutable_runtime()->set_gradient_checkpointing(job.checkpointing);
    const absl::StatusOr<int64_t> free = cuda::FreeBytes();
    ASSERT_TRUE(free.ok()) << free.status();
    const RankResult result = RunJob(dir_, spec, {.generation = generation})[0];
    ASSERT_EQ(result.steps.size(), 4u) << result.finished.text();
    const auto taken = static_cast<double>(result.steps.back().memory_reserved_bytes());
    const auto estimated =
        static_cast<double>(TotalBytes(MemoryEstimate(spec, RecomputeOf(spec, *free))));
    printf("S=%d, checkpointing %d: estimated %.0f MiB, taken %.0f MiB, allocated %.0f MiB\n",
           job.seq_len, job.checkpointing, estimated / (1 << 20), taken / (1 << 20),
           static_cast<double>(result.steps.back().memory_allocated_bytes()) / (1 << 20));
    EXPECT_NEAR(estimated, taken, 0.05 * taken);
  }
}

}  // namespace
}  // namespace nsa::train
