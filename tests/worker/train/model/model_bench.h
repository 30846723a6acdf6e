// A small model on the CPU with its parameters, gradients and a batch, for tests.
#pragma once

#include <cblas.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/model.h"

namespace nsa::train {

// A job's parameters, a model of its shape, and one batch.
struct Bench {
  explicit Bench(const v1::JobSpec& job, std::optional<Recompute> recompute = {})
      : spec(job),
        layout(spec),
        parameters(&layout),
        gradients(&layout),
        tokens(TinyTokens(Rows(), spec.model().vocab(), 1)),
        targets(TinyTokens(Rows(), spec.model().vocab(), 2)) {
    // The shapes are too small for several threads.
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    Initialize(spec.train().seed(), &parameters);
    auto made = Model::Create(spec,
                              {.batch = spec.train().batch_size(),
                               .seq_len = spec.train().seq_len(),
                               .training = true,
                               .statistics = true,
                               .recompute = recompute},
                              &parameters);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) model = *std::move(made);
  }

  Bench(const Bench&) = delete;  // the arenas have pointers to the layout

  int64_t Rows() const { return int64_t{spec.train().batch_size()} * spec.train().seq_len(); }

  // Sets parameters large enough that scores, gates and norms are far from their symmetric initial
  // values.
  void Randomize() {
    std::mt19937 engine(3);
    std::normal_distribution<float> normal(0.0f, 0.25f);
    for (const ParameterInfo& tensor : layout.tensors()) {
      for (float& value : parameters.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
      }
    }
  }

  double Loss() {
    const auto loss = model->Forward({}, {tokens, targets, doc_start});
    EXPECT_TRUE(loss.ok()) << loss.status();
    // The mean over the tokens in fp64; the kernel's mean is rounded to fp32.
    double sum = 0;
    for (const float token_loss : model->token_losses()) sum += token_loss;
    return sum / static_cast<double>(Rows());
  }

  void Backward() {
    EXPECT_TRUE(model->Backward({}, static_cast<float>(1.0 / Rows()), &gradients).ok());
  }

  v1::JobSpec spec;
  ParameterLayout layout;
  Arena parameters;
  Arena gradients;
  std::vector<int32_t> tokens, targets, doc_start;
  std::unique_ptr<Model> model;
};

}  // namespace nsa::train
