// Compares the model on a GPU in bf16 with the model on the CPU in fp32, with the same weights
// (rounded to bf16 first) and the same tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <random>

#include "common/base/status.h"
#include "common/estimate/memory/memory.h"
#include "common/preflight/preflight.h"
#include "kernels/nn/copy.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/model/gradient_window.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/weight_window.h"

namespace nsa::train {
namespace {

// Widths are multiples of 8, which matrix products on GPUs require. n_sel = S_sel, so that all
// blocks are selected: rounding could otherwise change the selection.
v1::JobSpec GpuJob() {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_dim(64);
  spec.mutable_model()->set_n_layers(3);
  spec.mutable_model()->set_vocab(48);
  spec.mutable_nsa()->set_n_sel(6);
  spec.mutable_train()->set_seq_len(48);
  spec.mutable_train()->set_batch_size(3);
  return spec;
}

// Where backward writes gradients: to zeros or ones, to which it adds; over NaNs; over NaNs in a
// window that has memory for one part of the model and the next.
enum class Into { kZeros, kOnes, kNans, kWindow };

class Bench {
 public:
  Bench(const v1::JobSpec& spec, bool documents)
      : spec_(spec), layout_(spec), weights_(&layout_), gradients_(&layout_) {
    const int64_t rows = int64_t{spec.train().batch_size()} * spec.train().seq_len();
    tokens_ = TinyTokens(rows, spec.model().vocab(), 1);
    targets_ = TinyTokens(rows, spec.model().vocab(), 2);
    for (int64_t i = 0; documents && i < rows; ++i) {
      doc_start_.push_back(i % spec.train().seq_len() < 19 ? 0 : 19);
    }
    std::mt19937 engine(3);
    for (const ParameterInfo& tensor : layout_.tensors()) {
      // A matrix keeps the size of its input. With larger weights the scores of wide heads grow
      // until their softmax is a choice of one key, and roundings change that choice.
      const auto in = static_cast<float>(tensor.shape.size() > 1 ? tensor.shape.back() : 64);
      std::normal_distribution<float> normal(0.0f, std::min(0.125f, 1 / std::sqrt(in)));
      for (float& value : weights_.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
        value = static_cast<float>(bf16(value));
      }
    }
  }
  Bench(const Bench&) = delete;  // the arenas have pointers to the layout

  // Returns the loss; gradients() then returns the gradients, in host memory. Statistics are those
  // of the last call. `divided`: on a GPU, the model reads its weights from a WeightWindow.
  double Run(Backend backend, std::optional<Recompute> recompute = {}, Into into = Into::kZeros,
             bool divided = false) {
    if (backend == Backend::kCuda && gpu_ == nullptr) {
      auto gpu = Gpu::Open();
      EXPECT_TRUE(gpu.ok()) << gpu.status();
      gpu_ = *std::move(gpu);
    }
    auto weights =
        Arena::Create(&layout_, {.backend = backend, .half = backend == Backend::kCuda}, "weights");
    auto gradients = Arena::Create(&layout_, {.backend = backend}, "gradients");
    EXPECT_TRUE(weights.ok() && gradients.ok());
    auto window = WeightWindow::Create(&layout_, spec_.model().n_layers(), backend);
    EXPECT_TRUE(window.ok()) << window.status();
    auto model = Model::Create(spec_,
                               {.batch = spec_.train().batch_size(),
                                .seq_len = spec_.train().seq_len(),
                                .training = true,
                                .statistics = true,
                                .backend = backend,
                                .recompute = recompute},
                               divided ? window->arena() : &*weights);
    EXPECT_TRUE(model.ok()) << model.status();
    Exec exec;
    if (divided) {
      (*model)->set_before_part([&](int32_t part, Model::Pass pass) {
        return Gather(exec, *weights, part, pass, &*window);
      });
    }
    if (backend == Backend::kCuda) {
      EXPECT_TRUE(gpu_->TakeScratch((*model)->scratch_bytes()).ok());
      exec = gpu_->exec();
    }
    Check(CopyArena(exec, weights_, &*weights));
    const auto loss = (*model)->Forward(exec, {tokens_, targets_, doc_start_});
    Check(loss.status());
    if (into == Into::kWindow) {
      BackwardInWindow(exec, model->get(), &*gradients);
    } else {
      const bool overwrite = into == Into::kNans;
      if (overwrite) Fill(exec, NAN, &*gradients);
      if (into == Into::kOnes) Fill(exec, 1, &*gradients);
      Check((*model)->Backward(exec, scale(), &*gradients, {}, overwrite));
    }
    Check(CopyArena(exec, *gradients, &gradients_));
    stats_ = (*model)->TakeLayerStats();
    return loss.ok() ? *loss : NAN;
  }

  const ParameterLayout& layout() const { return layout_; }
  const Arena& gradients() const { return gradients_; }
  std::vector<float> Flat() const {
    const std::span<const float> flat = gradients_.flat();
    return {flat.begin(), flat.end()};
  }
  const std::vector<v1::LayerStats>& stats() const { return stats_; }
  v1::JobSpec& spec() { return spec_; }

 private:
  static void Check(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

  float scale() const { return static_cast<float>(1 / static_cast<double>(tokens_.size())); }

  // All that `arena` has now, and what is behind it.
  static void Fill(const Exec& exec, float value, Arena* arena) {
    const std::span<float> all = arena->with_extras();
    const std::vector<float> values(all.size(), value);
    Check(cuda::CopyBytes(exec.stream, all.data(), values.data(),
                          static_cast<int64_t>(all.size_bytes())));
    Check(cuda::Synchronize(exec.stream));
  }

  // Each part goes to `gradients` as soon as it is complete.
  void BackwardInWindow(const Exec& exec, Model* model, Arena* gradients) {
    auto window = GradientWindow::Create(&layout_, PartsOf(*model, layout_), Backend::kCuda);
    ASSERT_TRUE(window.ok()) << window.status();
    size_t part = 0;
    const auto open = [&] {
      window->MoveTo(part);
      Fill(exec, NAN, window->arena());
    };
    const auto take = [&](int64_t) -> absl::Status {
      const Slice slice = window->arena()->slice();
      const absl::Status copied = Copy(exec, window->arena()->flat(), gradients->of(slice));
      if (copied.ok() && ++part < window->parts().size()) open();
      return copied;
    };
    open();
    Check(model->Backward(exec, scale(), window->arena(), take, /*overwrite=*/true));
    EXPECT_EQ(part, window->parts().size());
  }

  // As GpuStep gathers the weights of other ranks.
  static absl::Status Gather(const Exec& exec, const Arena& all, int32_t part, Model::Pass pass,
                             WeightWindow* window) {
    for (const int32_t due : GathersBefore(part, pass, window->last(), /*ahead=*/true)) {
      window->MoveTo(due);
      const Slice& elements = window->part(due);
      NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, window->arena()->half(elements).data,
                                          all.half(elements).data, 2 * elements.size()));
      const Tensor tail = window->tail(due);
      if (tail.wanted()) {
        NSA_RETURN_IF_ERROR(cuda::ZeroBytes(exec.stream, tail.data, 2 * tail.size));
      }
    }
    window->MoveTo(part);
    return absl::OkStatus();
  }

  v1::JobSpec spec_;
  ParameterLayout layout_;
  Arena weights_, gradients_;
  std::vector<int32_t> tokens_, targets_, doc_start_;
  std::unique_ptr<Gpu> gpu_;
  std::vector<v1::LayerStats> stats_;
};

struct Variant {
  const char* name;
  std::function<void(v1::JobSpec*)> change;
  bool documents = false;
};

void Branches(v1::JobSpec* spec, std::initializer_list<v1::Branch> branches) {
  spec->mutable_nsa()->clear_branches();
  for (const v1::Branch branch : branches) spec->mutable_nsa()->add_branches(branch);
}

class GpuModel : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    v1::JobSpec spec = GpuJob();
    GetParam().change(&spec);
    bench_ = std::make_unique<Bench>(spec, GetParam().documents);
  }
  std::unique_ptr<Bench> bench_;
};

// Length of the gradient of all tensors in the same block (outside blocks: of the tensor itself).
double LengthAround(const ParameterLayout& layout, const std::vector<float>& gradients,
                    const ParameterInfo& tensor) {
  const std::string block = tensor.name.substr(0, tensor.name.find('.', 7) + 1);
  double sum = 0;
  for (const ParameterInfo& other : layout.tensors()) {
    const bool near = tensor.name.starts_with("blocks.") ? other.name.starts_with(block)
                                                         : other.name == tensor.name;
    for (int64_t i = 0; near && i < other.size; ++i) {
      sum += double{gradients[other.offset + i]} * gradients[other.offset + i];
    }
  }
  return std::sqrt(sum);
}

// A gradient is rounded to bf16 (unit roundoff 2^-9) about 25 times per layer, in three layers,
// forward and backward. The roundings are independent, so their sum is √(2 · 3 · 25) · 2^-9 ≈ 2.4 %
// of the gradient's length; the bound is twice that. A gradient that is a small difference of
// larger ones (a gate's, or that of a bias which shifts all scores alike, which is 0) has the
// rounding errors of those: 2^-9 of the block's gradient. The loss is a mean over 144 tokens.
TEST_P(GpuModel, HasTheGradientsOfTheCpu) {
  const double want_loss = bench_->Run(Backend::kCpu);
  const std::vector<float> want = bench_->Flat();
  const std::vector<v1::LayerStats> want_stats = bench_->stats();
  const double loss = bench_->Run(Backend::kCuda);
  EXPECT_NEAR(loss, want_loss, 0.01 * want_loss);
  double worst = 0;
  for (const ParameterInfo& tensor : bench_->layout().tensors()) {
    const std::span<const float> got = bench_->gradients().of(tensor);
    double error = 0, norm = 0;
    for (int64_t i = 0; i < tensor.size; ++i) {
      const double w = want[tensor.offset + i];
      error += (got[i] - w) * (got[i] - w);
      norm += w * w;
    }
    error = std::sqrt(error);
    norm = std::sqrt(norm);
    const double around = LengthAround(bench_->layout(), want, tensor);
    worst = std::max(worst, error / (norm + 1e-30));
    EXPECT_LE(error, 0.05 * norm + 0x1p-9 * around)
        << tensor.name << ", length " << norm << ", around it " << around;
  }
  printf("%s: loss %.6f (CPU %.6f), worst gradient %.4f\n", GetParam().name, loss, want_loss,
         worst);
  ASSERT_EQ(bench_->stats().size(), want_stats.size());
  for (size_t layer = 0; layer < want_stats.size(); ++layer) {
    const v1::LayerStats &got = bench_->stats()[layer], &cpu = want_stats[layer];
    for (int branch = 0; branch < 3; ++branch) {
      EXPECT_EQ(got.keys_read(branch), cpu.keys_read(branch)) << layer << " " << branch;
      EXPECT_EQ(got.keys_expected(branch), cpu.keys_expected(branch)) << layer << " " << branch;
    }
    EXPECT_NEAR(got.gate().entropy_mean(), cpu.gate().entropy_mean(), 0.02) << layer;
    EXPECT_EQ(got.selection().rows(), cpu.selection().rows()) << layer;
    EXPECT_EQ(got.selection().keys_max(), cpu.selection().keys_max()) << layer;
  }
}

TEST_P(GpuModel, RepeatsItsBits) {
  bench_->Run(Backend::kCuda);
  const std::vector<float> first = bench_->Flat();
  bench_->Run(Backend::kCuda);
  const std::vector<float> second = bench_->Flat();
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

TEST_P(GpuModel, CheckpointingChangesNoBit) {
  bench_->spec().mutable_runtime()->set_gradient_checkpointing(false);
  const double loss = bench_->Run(Backend::kCuda);
  const std::vector<float> kept = bench_->Flat();
  bench_->spec().mutable_runtime()->set_gradient_checkpointing(true);
  for (const Recompute what : {Recompute::kNorms, Recompute::kMlp, Recompute::kBlock}) {
    EXPECT_EQ(bench_->Run(Backend::kCuda, what), loss);
    const std::vector<float> recomputed = bench_->Flat();
    EXPECT_EQ(std::memcmp(kept.data(), recomputed.data(), kept.size() * sizeof(float)), 0);
  }
}

TEST_P(GpuModel, WeightsThatComePartByPartChangeNoBit) {
  if (bench_->spec().model().tie_embeddings()) GTEST_SKIP() << "its head is its first part";
  const double loss = bench_->Run(Backend::kCuda);
  const std::vector<float> whole = bench_->Flat();
  for (const Recompute what : {Recompute::kNothing, Recompute::kMlp, Recompute::kBlock}) {
    EXPECT_EQ(bench_->Run(Backend::kCuda, what, Into::kZeros, /*divided=*/true), loss);
    const std::vector<float> divided = bench_->Flat();
    EXPECT_EQ(std::memcmp(whole.data(), divided.data(), whole.size() * sizeof(float)), 0);
  }
}

// The library may compute the products with another algorithm then.
TEST_P(GpuModel, OverwrittenGradientsAreThoseAddedToZeros) {
  bench_->Run(Backend::kCuda);
  const std::vector<float> added = bench_->Flat();
  bench_->Run(Backend::kCuda, {}, Into::kNans);
  const std::vector<float> overwritten = bench_->Flat();
  double error = 0, norm = 0;
  for (size_t i = 0; i < added.size(); ++i) {
    ASSERT_TRUE(std::isfinite(overwritten[i])) << i;
    error += std::pow(double{overwritten[i]} - added[i], 2);
    norm += std::pow(double{added[i]}, 2);
  }
  EXPECT_LE(std::sqrt(error), 1e-4 * std::sqrt(norm));
}

// As those of a second micro-batch are. The sums have the unit roundoff of numbers near 1, and the
// gradients of a matrix may be added to them in several parts.
TEST_P(GpuModel, GradientsAreAddedToThoseBefore) {
  bench_->Run(Backend::kCuda);
  const std::vector<float> alone = bench_->Flat();
  bench_->Run(Backend::kCuda, {}, Into::kOnes);
  for (const ParameterInfo& tensor : bench_->layout().tensors()) {
    const std::span<const float> sums = bench_->gradients().of(tensor);
    for (int64_t i = 0; i < tensor.size; ++i) {
      const double want = 1.0 + alone[tensor.offset + i];
      ASSERT_NEAR(sums[i], want, 1e-5 + 1e-4 * std::fabs(want - 1)) << tensor.name << " " << i;
    }
  }
}

// runtime.shard: gradients. The gaps between tensors count: they are summed and updated, too.
TEST_P(GpuModel, AWindowHasTheBitsOfAllGradients) {
  if (bench_->spec().model().tie_embeddings()) GTEST_SKIP() << "has no window";
  bench_->Run(Backend::kCuda, {}, Into::kNans);
  const std::vector<float> all = bench_->Flat();
  bench_->Run(Backend::kCuda, {}, Into::kWindow);
  const std::vector<float> parts = bench_->Flat();
  EXPECT_EQ(std::memcmp(all.data(), parts.data(), all.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, GpuModel,
    ::testing::Values(
        Variant{"Default", [](v1::JobSpec*) {}},
        Variant{"PhiMlp", [](v1::JobSpec* s) { s->mutable_nsa()->set_phi(v1::PHI_MLP); }},
        Variant{"Sigmoid", [](v1::JobSpec* s) { s->mutable_nsa()->set_gate(v1::GATE_SIGMOID); }},
        Variant{"Documents", [](v1::JobSpec*) {}, true},
        Variant{"WideValues", [](v1::JobSpec* s) { s->mutable_model()->set_d_v(32); }},
        Variant{"WidthsOfThePaper",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_d_k(192);
                  s->mutable_model()->set_d_v(128);
                  s->mutable_nsa()->set_phi(v1::PHI_MLP);
                  s->mutable_nsa()->set_gate(v1::GATE_SIGMOID);
                }},
        Variant{"WideKeysWithQkNormAndDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_d_k(192);
                  s->mutable_model()->set_qk_norm(true);
                },
                true},
        Variant{"ManyHeads", [](v1::JobSpec* s) { s->mutable_model()->set_n_heads(12); }},
        Variant{"OddVocabulary", [](v1::JobSpec* s) { s->mutable_model()->set_vocab(51); }},
        Variant{"OddWidth", [](v1::JobSpec* s) { s->mutable_model()->set_dim(40); }},
        Variant{"QkNorm", [](v1::JobSpec* s) { s->mutable_model()->set_qk_norm(true); }},
        Variant{"Relu2",
                [](v1::JobSpec* s) { s->mutable_model()->set_activation(v1::ACTIVATION_RELU2); }},
        Variant{"NormEps", [](v1::JobSpec* s) { s->mutable_model()->set_norm_eps(0.01); }},
        Variant{"NormEpsWithQkNorm",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_norm_eps(0.01);
                  s->mutable_model()->set_qk_norm(true);
                }},
        Variant{"AllOfOtherFamiliesWithDocuments",
                [](v1::JobSpec* s) {
                  UseAllOfOtherFamilies(s);
                  s->mutable_model()->set_vocab(51);
                },
                true},
        Variant{"TiedEmbeddingsOfAnOddVocabulary",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_tie_embeddings(true);
                  s->mutable_model()->set_vocab(51);
                }},
        Variant{"QkvBias", [](v1::JobSpec* s) { s->mutable_model()->set_qkv_bias(true); }},
        Variant{"RopeScaling",
                [](v1::JobSpec* s) {
                  v1::RopeScaling* scaling = s->mutable_model()->mutable_rope_scaling();
                  scaling->set_type(v1::ROPE_SCALING_TYPE_YARN);
                  scaling->set_factor(4);
                  scaling->set_original_seq_len(2000);
                  ApplyDefaults(s);
                }},
        Variant{"QkNormWeights",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_qk_norm(true);
                  s->mutable_model()->set_qk_norm_weights(true);
                }},
        Variant{"WideKeysWithQkNormWeights",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_d_k(192);
                  s->mutable_model()->set_qk_norm(true);
                  s->mutable_model()->set_qk_norm_weights(true);
                  SetLayers(s, {"win", "cmp+sel"});
                }},
        Variant{"RotationInWindows",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
                  s->mutable_model()->set_qk_norm(true);
                  SetLayers(s, {"win", "cmp+sel"});
                }},
        Variant{"FullAndWindowsAndBlocks",
                [](v1::JobSpec* s) {
                  SetLayers(s, {"full", "win", "sel"});
                }},
        Variant{"FullWithoutRotationWithDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
                  SetLayers(s, {"win", "full"});
                },
                true},
        Variant{"Swiglu",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_mlp(v1::MLP_SWIGLU);
                  s->mutable_model()->set_mlp_dim(112);
                }},
        Variant{"QkNormOfLayersInTurnWithDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_qk_norm(true);
                  s->mutable_model()->set_d_k(32);
                  s->mutable_nsa()->set_phi(v1::PHI_MLP);
                  SetLayers(s, {"cmp+win", "sel", "cmp+sel+win"});
                },
                true},
        Variant{"WindowAlone", [](v1::JobSpec* s) { Branches(s, {v1::BRANCH_WIN}); }},
        Variant{"LayersInTurn",
                [](v1::JobSpec* s) {
                  SetLayers(s, {"win", "cmp+sel"});
                }},
        Variant{"LayersInTurnWithDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_nsa()->set_phi(v1::PHI_MLP);
                  s->mutable_nsa()->set_gate(v1::GATE_SIGMOID);
                  SetLayers(s, {"cmp+win", "sel", "cmp+sel+win"});
                },
                true},
        Variant{"SelectedAndWindow",
                [](v1::JobSpec* s) { Branches(s, {v1::BRANCH_SEL, v1::BRANCH_WIN}); }}),
    [](const auto& instance) { return std::string(instance.param.name); });

// Jobs of many shapes, valid and invalid ones.
std::vector<v1::JobSpec> ManyJobs() {
  std::mt19937 random(11);
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  std::vector<v1::JobSpec> jobs;
  for (int round = 0; round < 120; ++round) {
    v1::JobSpec spec = GpuJob();
    spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
    spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
    spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
    v1::ModelSpec& model = *spec.mutable_model();
    model.set_vocab(one_of({256, 257, 1000, 50257}));
    model.set_dim(one_of({8, 24, 64, 200, 36}));
    model.set_n_layers(1);
    model.set_mlp_ratio(one_of({1, 3, 4}));
    model.set_n_kv_groups(one_of({1, 2, 3}));
    model.set_n_heads(model.n_kv_groups() * one_of({1, 2, 5, 6, 16, 17}));
    model.set_d_k(one_of({16, 32, 64, 128, 192, 48}));
    model.set_d_v(one_of({16, 32, 64, 128}));
    if (round % 4 == 1) model.set_mlp_dim(one_of({16, 48, 336}));
    if (round % 5 == 1) model.set_norm_eps(1e-5);
    model.set_tie_embeddings(round % 3 == 0);
    model.set_qkv_bias(round % 5 == 0);
    if (round % 7 == 1) model.set_mlp(v1::MLP_SWIGLU);
    model.set_qk_norm(round % 2 == 1);
    model.set_qk_norm_weights(round % 4 == 3);
    if (round % 3 == 1) model.set_activation(v1::ACTIVATION_RELU2);
    v1::NsaSpec& nsa = *spec.mutable_nsa();
    nsa.set_d(one_of({1, 4, 8, 16}));
    nsa.set_l(nsa.d() * one_of({1, 2, 3, 8}));
    nsa.set_l_sel(nsa.d() * one_of({1, 2, 4, 16}));
    nsa.set_n_sel(one_of({3, 4, 16, 64}));
    nsa.set_w(one_of({1, 5, 64, 512}));
    nsa.set_phi(one_of({0, 1}) == 0 ? v1::PHI_AVG : v1::PHI_MLP);
    nsa.clear_branches();
    const int branches = one_of({1, 2, 3, 4, 5, 6, 7});
    for (int branch = 0; branch < 3; ++branch) {
      if ((branches >> branch & 1) != 0) nsa.add_branches(static_cast<v1::Branch>(branch + 1));
    }
    spec.mutable_train()->set_seq_len(one_of({1, 7, 33, 128, 300, 16500}));
    spec.mutable_train()->set_batch_size(spec.train().seq_len() > 1000 ? 1 : one_of({1, 2, 3}));
    spec.mutable_train()->set_steps(10);
    spec.mutable_train()->set_out_dir("/tmp/nsa-shapes");
    jobs.push_back(spec);
  }
  return jobs;
}

// Preflight accepts a job exactly when no kernel refuses it: a job that it accepts runs, and for a
// job that it refuses because of its shape no model can be created.
TEST(GpuShapes, RunExactlyWhenPreflightAcceptsThem) {
  std::vector<v1::JobSpec> accepted, refused;
  for (const v1::JobSpec& spec : ManyJobs()) {
    const v1::PreflightReport report = Preflight(spec, {});
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() != v1::SEVERITY_ERROR) continue;
      EXPECT_THAT(finding.rule(), ::testing::AnyOf("SHAPE_GROUPS", "SHAPE_STRIDE", "SHAPE_INVALID",
                                                   "CUDA_WIDTH", "MODEL_RANGE", "MODEL_CONFLICT"));
    }
    (report.accepted() ? accepted : refused).push_back(spec);
  }
  EXPECT_GT(accepted.size(), 30u);
  EXPECT_GT(refused.size(), 30u);
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  for (size_t i = 0; i < accepted.size() && !HasFailure(); ++i) {
    SCOPED_TRACE(accepted[i].DebugString());
    const bool documents = i % 3 == 0 && accepted[i].train().seq_len() > 20;
    EXPECT_TRUE(std::isfinite(Bench(accepted[i], documents).Run(Backend::kCuda)));
  }
  for (const v1::JobSpec& spec : refused) {
    SCOPED_TRACE(spec.DebugString());
    const ParameterLayout layout(spec);
    const auto weights = Arena::Create(&layout, {.backend = Backend::kCuda, .half = true}, "");
    ASSERT_TRUE(weights.ok());
    const ModelOptions options = {.batch = spec.train().batch_size(),
                                  .seq_len = spec.train().seq_len(),
                                  .backend = Backend::kCuda};
    EXPECT_FALSE(Model::Create(spec, options, &*weights).ok());
  }
}

}  // namespace
}  // namespace nsa::train
