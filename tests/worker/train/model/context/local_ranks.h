// A job's model on one rank and on several that share its sequences, as threads of this process:
// losses, gradients summed over the ranks, and statistics.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/nsa/branch.h"
#include "kernels/cuda/device.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/model/context/context_group.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

inline void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// Where the ranks meet: each shows its pieces, and the receivers copy them.
struct Meeting {
  explicit Meeting(int32_t ranks) : everybody(ranks), pieces(ranks) {}
  std::barrier<> everybody;
  std::vector<std::span<const ContextGroup::Piece>> pieces;
};

class LocalRank final : public ContextGroup {
 public:
  LocalRank(Meeting* meeting, int32_t index) : meeting_(*meeting), index_(index) {}

  int32_t size() const override { return static_cast<int32_t>(meeting_.pieces.size()); }
  int32_t index() const override { return index_; }

  absl::Status Exchange(const Exec& exec, std::span<const Piece> pieces) override {
    const bool cuda = exec.backend == Backend::kCuda;
    if (cuda) ExpectOk(cuda::Synchronize(exec.stream));  // what is sent is complete
    meeting_.pieces[index_] = pieces;
    meeting_.everybody.arrive_and_wait();
    std::vector<size_t> next(size(), 0);
    for (const Piece& mine : pieces) {
      const std::span<const Piece> his = meeting_.pieces[mine.rank];
      size_t& at = next[mine.rank];
      while (his[at].rank != index_) ++at;
      const Piece& from = his[at++];
      EXPECT_EQ(from.bytes, mine.bytes);
      if (cuda) {
        ExpectOk(cuda::CopyBytes(exec.stream, mine.receive, from.send, mine.bytes));
      } else {
        std::memcpy(mine.receive, from.send, mine.bytes);
      }
    }
    if (cuda) ExpectOk(cuda::Synchronize(exec.stream));
    meeting_.everybody.arrive_and_wait();
    return absl::OkStatus();
  }

 private:
  Meeting& meeting_;
  const int32_t index_;
};

// What a rank has after a forward, a backward and an audit.
struct RankOutcome {
  double loss = 0;
  std::vector<float> token_losses;  // on the CPU
  std::vector<float> gradients;     // flat
  std::vector<v1::LayerStats> stats;
};

struct ContextCase {
  v1::JobSpec spec;
  Backend backend = Backend::kCpu;
  std::optional<Recompute> recompute = {};
  bool documents = false;
};

class ContextBench {
 public:
  explicit ContextBench(ContextCase c)
      : case_(std::move(c)), layout_(case_.spec), weights_(&layout_) {
    const v1::TrainSpec& train = case_.spec.train();
    const int32_t seq_len = train.seq_len();
    const int64_t rows = int64_t{train.batch_size()} * seq_len;
    tokens_ = TinyTokens(rows, case_.spec.model().vocab(), 1);
    targets_ = TinyTokens(rows, case_.spec.model().vocab(), 2);
    for (int64_t i = 0; case_.documents && i < rows; ++i) {
      // A document ends in another part of each row.
      const auto t = static_cast<int32_t>(i % seq_len), row = static_cast<int32_t>(i / seq_len);
      const int32_t start = seq_len * (2 * row + 1) / (2 * train.batch_size()) - 1;
      doc_start_.push_back(t < start ? 0 : start);
    }
    std::mt19937 engine(3);
    std::normal_distribution<float> normal(0.0f, 0.125f);
    for (const ParameterInfo& tensor : layout_.tensors()) {
      for (float& value : weights_.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
        if (case_.backend == Backend::kCuda) value = static_cast<float>(bf16(value));
      }
    }
  }
  ContextBench(const ContextBench&) = delete;  // the arena has a pointer to the layout

  // The outcome of each of `ranks` ranks; of one rank without a group.
  std::vector<RankOutcome> Run(int32_t ranks) const {
    Meeting meeting(ranks);
    std::vector<RankOutcome> outcomes(ranks);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        LocalRank group(&meeting, rank);
        outcomes[rank] = RunRank(ranks == 1 ? nullptr : &group, ranks, rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  const ParameterLayout& layout() const { return layout_; }

 private:
  // This rank's part of every row.
  std::vector<int32_t> PartOf(const std::vector<int32_t>& values, int32_t ranks,
                              int32_t rank) const {
    const int32_t seq_len = case_.spec.train().seq_len(), part = seq_len / ranks;
    std::vector<int32_t> out;
    for (size_t row = 0; row < values.size(); row += seq_len) {
      const auto first = values.begin() + static_cast<ptrdiff_t>(row) + rank * part;
      out.insert(out.end(), first, first + part);
    }
    return out;
  }

  RankOutcome RunRank(ContextGroup* group, int32_t ranks, int32_t rank) const {
    const v1::JobSpec& spec = case_.spec;
    const bool cuda = case_.backend == Backend::kCuda;
    auto weights = Arena::Create(&layout_, {.backend = case_.backend, .half = cuda}, "weights");
    auto gradients = Arena::Create(&layout_, {.backend = case_.backend}, "gradients");
    std::unique_ptr<Gpu> gpu;
    if (cuda) {
      auto opened = Gpu::Open();
      ExpectOk(opened.status());
      gpu = *std::move(opened);
    }
    auto model = Model::Create(spec,
                               {.batch = spec.train().batch_size(),
                                .seq_len = spec.train().seq_len(),
                                .training = true,
                                .statistics = true,
                                .backend = case_.backend,
                                .group = group,
                                .recompute = case_.recompute},
                               &*weights);
    ExpectOk(model.status());
    if (!model.ok()) std::abort();  // the other ranks would wait for ever
    Exec exec;
    if (cuda) {
      ExpectOk(gpu->TakeScratch((*model)->scratch_bytes()));
      exec = gpu->exec();
    }
    ExpectOk(CopyArena(exec, weights_, &*weights));
    const std::vector<int32_t> tokens = PartOf(tokens_, ranks, rank);
    const std::vector<int32_t> targets = PartOf(targets_, ranks, rank);
    RankOutcome outcome;
    const auto loss = (*model)->Forward(exec, {tokens, targets, doc_start_});
    ExpectOk(loss.status());
    outcome.loss = loss.value_or(NAN);
    if (!cuda) {
      const std::span<const float> losses = (*model)->token_losses();
      outcome.token_losses = {losses.begin(), losses.end()};
    }
    const float scale = 1.0f / static_cast<float>(tokens_.size());
    ExpectOk((*model)->Backward(exec, scale, &*gradients));
    ExpectOk((*model)->AuditAttention(exec, 7));
    Arena host(&layout_);
    ExpectOk(CopyArena(exec, *gradients, &host));
    outcome.gradients = {host.flat().begin(), host.flat().end()};
    outcome.stats = (*model)->TakeLayerStats();
    return outcome;
  }

  const ContextCase case_;
  const ParameterLayout layout_;
  Arena weights_;
  std::vector<int32_t> tokens_, targets_, doc_start_;
};

// The gradients of all ranks, summed in their order.
inline std::vector<float> SumOfGradients(const std::vector<RankOutcome>& ranks) {
  std::vector<float> sum(ranks.front().gradients.size(), 0.0f);
  for (const RankOutcome& rank : ranks) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += rank.gradients[i];
  }
  return sum;
}

// Expects every element within `tolerance` of the largest of its tensor.
inline void ExpectSameGradients(const ParameterLayout& layout, const std::vector<float>& got,
                                const std::vector<float>& want, double tolerance) {
  for (const ParameterInfo& tensor : layout.tensors()) {
    double largest = 0, worst = 0;
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      largest = std::max(largest, std::abs(double{want[i]}));
      const double error = std::abs(double{got[i]} - double{want[i]});
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    // phi_k's last bias has a gradient of zero but for rounding: it shifts all keys alike.
    EXPECT_LE(worst, tolerance * largest + 1e-8) << tensor.name << ", largest " << largest;
  }
}

}  // namespace nsa::train
