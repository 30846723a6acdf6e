// The output head with random weights and rows, on the CPU or a GPU, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/output_head.h"

namespace nsa::train {

// 48 rows, two of which predict nothing; a vocabulary that no power of two divides.
class HeadCase {
 public:
  static constexpr int64_t kRows = 48;

  struct Results {
    float mean_loss = NAN;
    std::vector<float> row_loss, dx, gradients;
  };

  explicit HeadCase(const Exec& exec) : exec_(exec), layout_(Spec()) {
    config_ = ModelConfigOf(Spec());
    config_.attention.shape.batch = 2;
    config_.attention.shape.seq_len = kRows / 2;
    if (OnGpu()) config_.attention.dtype = DType::kBf16;
    places_ = ModelPlaces::Of(layout_, config_.n_layers);
    Arena host(&layout_);
    std::mt19937 engine(5);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    for (float& value : host.flat()) value = normal(engine);
    x_.resize(kRows * config_.dim);
    for (float& value : x_) value = normal(engine);
    targets_ = TinyTokens(kRows, config_.vocab, 2);
    targets_[3] = targets_[kRows - 1] = -1;
    auto weights = Arena::Create(&layout_, {.backend = exec.backend, .half = OnGpu()}, "weights");
    EXPECT_OK(weights);
    weights_ = *std::move(weights);
    EXPECT_OK(CopyArena(exec_, host, &weights_));
  }
  HeadCase(const HeadCase&) = delete;  // the arenas have pointers to the layout

  // Norm(), Forward() unless `loss_in_backward`, Backward(). Gradients are those of the sum over
  // the rows. Before, the head's weights have NaN with `overwrite`, else 1, which is subtracted.
  Results Run(int64_t rows_at_once, bool loss_in_backward, bool overwrite) {
    ActivationArena arena;
    OutputHead head(&config_, &places_, &weights_);
    head.Plan(rows_at_once, &arena);
    const DType type = config_.attention.dtype;
    const int64_t size = kRows * config_.dim;
    const auto x = arena.Plan(size, type), dh = arena.Plan(size, type), dx = arena.Plan(size, type);
    const auto targets = arena.Plan(kRows, DType::kI32), losses = arena.Plan(kRows + 1);
    EXPECT_OK(arena.Allocate(exec_.backend));
    auto gradients = Arena::Create(&layout_, {.backend = exec_.backend}, "gradients");
    EXPECT_OK(gradients);
    std::vector<float> before(layout_.size());
    std::fill_n(before.begin() + places_.head.offset, places_.head.size, overwrite ? NAN : 1.0f);
    Copy(before.data(), gradients->flat());
    if (OnGpu()) {
      const std::vector<bf16> rounded(x_.begin(), x_.end());
      Copy(rounded.data(), arena[x]);
    } else {
      Copy(x_.data(), arena[x]);
    }
    Copy(targets_.data(), arena[targets]);

    const std::span<float> loss = arena[losses].as<float>();
    const OutputHead::Loss where = {
        .targets = arena[targets], .row_loss = loss.first(kRows), .mean_loss = loss.last(1)};
    EXPECT_OK(head.Norm(exec_, arena[x]));
    if (!loss_in_backward) {
      EXPECT_OK(head.Forward(exec_, where));
    }
    EXPECT_OK(head.Backward(exec_, {.x = arena[x],
                                    .loss = where,
                                    .has_loss = !loss_in_backward,
                                    .dh = arena[dh],
                                    .dx = arena[dx],
                                    .gradients = &*gradients,
                                    .overwrite = overwrite}));
    Results results = {.row_loss = Read(where.row_loss),
                       .dx = Read(arena[dx]),
                       .gradients = Read(gradients->flat())};
    results.mean_loss = Read(where.mean_loss)[0];
    for (int64_t i = 0; !overwrite && i < places_.head.size; ++i) {
      results.gradients[places_.head.offset + i] -= 1;
    }
    return results;
  }

 private:
  static v1::JobSpec Spec() {
    v1::JobSpec spec = TinyJob();
    spec.mutable_model()->set_vocab(211);
    return spec;
  }
  bool OnGpu() const { return exec_.backend == Backend::kCuda; }

  void Copy(const void* from, const Tensor& to) {
    const int64_t bytes = to.size * SizeOf(to.dtype);
    if (!OnGpu()) {
      std::memcpy(to.data, from, bytes);
      return;
    }
    EXPECT_OK(cuda::CopyBytes(exec_.stream, to.data, from, bytes));
  }
  std::vector<float> Read(const Tensor& from) {
    if (!OnGpu()) return {from.as<float>().begin(), from.as<float>().end()};
    std::vector<float> values(from.size);
    if (from.dtype == DType::kF32) {
      EXPECT_OK(cuda::CopyBytes(exec_.stream, values.data(), from.data, 4 * from.size));
      EXPECT_OK(cuda::Synchronize(exec_.stream));
      return values;
    }
    std::vector<bf16> raw(from.size);
    EXPECT_OK(cuda::CopyBytes(exec_.stream, raw.data(), from.data, 2 * from.size));
    EXPECT_OK(cuda::Synchronize(exec_.stream));
    for (size_t i = 0; i < raw.size(); ++i) values[i] = static_cast<float>(raw[i]);
    return values;
  }

  const Exec exec_;
  const ParameterLayout layout_;
  ModelConfig config_;
  ModelPlaces places_;
  Arena weights_;
  std::vector<float> x_;
  std::vector<int32_t> targets_;
};

// The length of a − b as a part of that of b.
inline double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace nsa::train
