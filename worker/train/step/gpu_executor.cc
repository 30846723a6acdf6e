// The step on a GPU: micro-batches are copied to the device, several of them as one pass
// (common/estimate/passes.h), then the whole step is enqueued and waited for once (gpu_step.h).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "common/job/data_source.h"
#include "common/run/rank_address.h"
#include "kernels/cuda/device.h"
#include "kernels/nn/copy.h"
#include "kernels/optimizer/parameters_hash.h"
#include "worker/train/comm/nccl_comm.h"
#include "worker/train/comm/nccl_library.h"
#include "worker/train/comm/nccl_log.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/gpu/gpu_step.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/model_products.h"
#include "worker/train/step/executor.h"
#include "worker/train/step/parameters_check.h"
#include "worker/train/step/ranks/context_ranks.h"
#include "worker/train/step/ranks/share_pieces.h"

namespace nsa::train {
namespace {

// For tests of a hanging kernel: the step in which one hangs, in the first start of a job. 0: none.
int64_t SpinAtStep(int64_t generation) {
  const char* const text = std::getenv("NSA_TEST_SPIN_AT_STEP");
  int64_t step = 0;
  return generation == 1 && text != nullptr && absl::SimpleAtoi(text, &step) ? step : 0;
}

// Micro-batches of the same shape one below the other: what the model computes in one pass.
class Stack {
 public:
  // Each rank holds 1/context of a sequence's tokens; documents are those of the whole sequence.
  explicit Stack(int32_t context) : context_(context) {}

  void Clear() { tokens_.clear(), targets_.clear(), doc_start_.clear(); }

  void Add(const TokenBatch& batch) {
    // A micro-batch without documents is one document, which begins at 0.
    const bool documents = !batch.doc_start.empty() || !doc_start_.empty();
    if (documents) doc_start_.resize(tokens_.size() * context_, 0);
    Append(batch.tokens, &tokens_);
    Append(batch.targets, &targets_);
    Append(batch.doc_start, &doc_start_);
    if (documents) doc_start_.resize(tokens_.size() * context_, 0);
  }

  // Fills up to `rows` tokens with some that predict nothing.
  void Pad(int64_t rows) {
    tokens_.resize(rows, 0);
    targets_.resize(rows, -1);
    if (!doc_start_.empty()) doc_start_.resize(rows * context_, 0);
  }

  TokenBatch batch() const {
    return {.tokens = tokens_, .targets = targets_, .doc_start = doc_start_};
  }

 private:
  static void Append(std::span<const int32_t> from, std::vector<int32_t>* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  const int32_t context_;
  std::vector<int32_t> tokens_, targets_, doc_start_;
};

class GpuExecutor final : public StepExecutor {
 public:
  explicit GpuExecutor(const ExecutorOptions& options)
      : options_(options),
        launch_(*options.launch),
        spec_(options.launch->spec()),
        passes_(PassesOf(spec_, launch_.world_size())),
        stack_(ContextOf(spec_)) {}

  absl::Status Open() override {
    NSA_ASSIGN_OR_RETURN(gpu_, Gpu::Open());
    NSA_RETURN_IF_ERROR(PlanProducts());
    if (launch_.world_size() > 1) NSA_RETURN_IF_ERROR(Connect());
    if (nccl_ != nullptr) context_ = ContextOverNccl(nccl_.get(), ContextOf(spec_));
    NSA_ASSIGN_OR_RETURN(
        state_, ModelState::Create(spec_, options_.layout, Backend::kCuda, launch_.world_size(),
                                   launch_.rank(), context_.get()));
    spdlog::info("backward recomputes {}; {} MiB of weights, gradients, moments and activations",
                 RecomputeName(state_->recompute), state_->bytes() >> 20);
    if (state_->sharded) {
      NSA_ASSIGN_OR_RETURN(piece_,
                           cuda::DeviceMemory::Allocate(4 * kPieceFloats, "checkpoint pieces"));
    }
    NSA_ASSIGN_OR_RETURN(
        step_, GpuStep::Create({.gpu = gpu_.get(),
                                .state = state_.get(),
                                .nccl = nccl_.get(),
                                .bf16_gradients = SendsBf16Gradients(spec_, launch_.world_size()),
                                .page = options_.page,
                                .micro_batches = passes_.count,
                                .world_size = launch_.world_size(),
                                .gradient_scale = static_cast<float>(
                                    1.0 / static_cast<double>(TokensPerStep(spec_))),
                                .weighted = LearnsAnswers(spec_.data()),
                                .graph = spec_.runtime().cuda_graphs(),
                                .sums_in_backward = context_ == nullptr,
                                .time_kernels = options_.time_kernels,
                                .spin_at_step = SpinAtStep(launch_.generation())}));
    constexpr int64_t kBytes = kHashes * sizeof(uint64_t);
    NSA_ASSIGN_OR_RETURN(hash_, cuda::DeviceMemory::Allocate(kBytes, "hash of the parameters"));
    NSA_ASSIGN_OR_RETURN(hash_on_host_,
                         cuda::PinnedMemory::Allocate(kBytes, "hash of the parameters"));
    return absl::OkStatus();
  }

  absl::Status AddMicroBatch(int32_t micro_batch, const TokenBatch& batch,
                             v1::StepRecord*) override {
    if (LearnsAnswers(spec_.data())) {
      if (micro_batch == 0) predicted_.assign(static_cast<size_t>(passes_.count), 0);
      predicted_[static_cast<size_t>(micro_batch / passes_.merged)] += PredictedOf(batch.targets);
    }
    if (micro_batch % passes_.merged == 0) stack_.Clear();
    stack_.Add(batch);
    if ((micro_batch + 1) % passes_.merged != 0) return absl::OkStatus();
    return state_->model->Load(step_->exec(), micro_batch / passes_.merged, stack_.batch());
  }

  // Runs the whole step, the update included.
  absl::Status CompleteGradients(v1::StepRecord* record) override {
    const bool fell_back = step_->graph_fallbacks() > 0;
    NSA_ASSIGN_OR_RETURN(const GpuStep::Result done,
                         step_->Run(record->step(), record->learning_rate(), WeightsOf(*record)));
    if (!fell_back && step_->graph_fallbacks() > 0) {
      spdlog::warn("cuda_graph: steps run kernel by kernel: {}", step_->graph_problem());
    }
    for (int32_t pass = 0; pass < passes_.count; ++pass) state_->model->Collect(pass);
    record->set_loss(done.loss);
    record->set_grad_norm(done.norm);
    record->set_skipped_nonfinite(done.skipped);
    v1::StepTimes& times = *record->mutable_times();
    times.set_forward_seconds(done.forward_seconds);
    times.set_backward_seconds(done.backward_seconds);
    times.set_communication_seconds(done.reduce_seconds);
    times.set_optimizer_seconds(done.optimizer_seconds);
    return absl::OkStatus();
  }

  std::vector<double> SequenceLosses() const override {
    std::vector<double> means;
    if (spec_.data().mix().empty()) return means;
    for (int32_t pass = 0; pass < passes_.count; ++pass) {
      AppendSequenceMeans(state_->model->token_losses(pass),
                          spec_.train().seq_len() / ContextOf(spec_), &means);
    }
    return means;
  }

  // Loss and gradients are the same bits on all ranks, so their devices have decided alike.
  absl::Status Update(bool, v1::StepRecord*) override { return absl::OkStatus(); }

  int32_t eval_batches_at_once() const override { return passes_.merged; }

  absl::StatusOr<double> EvalLoss(std::span<const TokenBatch> batches) override {
    const Exec& exec = step_->exec();
    stack_.Clear();
    for (const TokenBatch& batch : batches) stack_.Add(batch);
    stack_.Pad(int64_t{passes_.sequences} * spec_.train().seq_len() / ContextOf(spec_));
    step_->BeginEvaluation(Phase::kEval);
    NSA_RETURN_IF_ERROR(state_->model->Load(exec, 0, stack_.batch()));
    NSA_RETURN_IF_ERROR(state_->model->EnqueueForward(exec, 0));
    NSA_RETURN_IF_ERROR(state_->model->EnqueueReadout(exec));
    NSA_RETURN_IF_ERROR(step_->Wait());
    return state_->model->Collect(0);
  }

  absl::Status Audit(int64_t step) override {
    step_->BeginEvaluation(Phase::kTelemetry);
    NSA_RETURN_IF_ERROR(state_->model->AuditAttention(step_->exec(), step));
    return step_->Wait();
  }

  absl::StatusOr<uint64_t> ParametersHash() override;

  void AddStatistics(v1::StepRecord* record) override {
    // Nothing is allocated after the first steps, so the driver is not asked again.
    constexpr int64_t kWarmUp = 3;
    ++steps_;
    if (gpu_bytes_ == 0 || steps_ <= kWarmUp) gpu_bytes_ = gpu_->UsedBytes();
    record->set_memory_allocated_bytes(state_->bytes());
    record->set_memory_reserved_bytes(gpu_bytes_);
    for (v1::LayerStats& stats : state_->model->TakeLayerStats()) {
      *record->add_layers() = std::move(stats);
    }
    auto& fallbacks = *record->mutable_fallbacks();
    if (step_->graph_fallbacks() > 0) fallbacks["cuda_graph"] = step_->graph_fallbacks();
    if (gpu_->untimed_products() > 0) fallbacks["cublaslt_untimed"] = gpu_->untimed_products();
    if (unpinned_ > 0) fallbacks["checkpoint_pinned_memory"] = unpinned_;
    if (!slow_path_.empty()) fallbacks["nccl_sockets"] = 1;
  }

  ModelState& state() override { return *state_; }
  Exec exec() const override { return gpu_->exec(); }

  SnapshotAccess snapshot_access() override {
    return {.copy = [this](std::span<float> to,
                           std::span<const float> from) { return CopyToHost(to, from); },
            .allocate = [this](int64_t floats) { return PinnedFloats(floats); }};
  }

  absl::Status ReadState(StatePart part, const Slice& wanted, bool local,
                         std::span<float> to) override;

  MatmulChoices Choices() const override {
    return {.library = gpu_->blas().library(), .algorithms = gpu_->blas().Algorithms()};
  }
  void Adopt(const MatmulChoices& choices) override { gpu_->blas().Adopt(choices.algorithms); }

  std::string SlowPath() const override { return slow_path_; }

  std::string Description() const override {
    if (gpu_ == nullptr) return CpuDescription(options_.threads);  // as far as Open() came
    if (nccl_ == nullptr) return gpu_->Description();
    return absl::StrCat(gpu_->Description(), ", ", nccl_->description());
  }

  void CaptureAgain() override { step_->CaptureAgain(); }
  int64_t graph_captures() const override { return step_->captures(); }
  void PrintKernelTimes(int64_t step) const override;

 private:
  static constexpr int64_t kPieceFloats = 4 << 20;
  // Of the fp32 weights that this rank has, of the bf16 weights that it has made, and of all bf16
  // weights; or in place of these of the fp32 weights, rounded.
  static constexpr int64_t kHashes = 3;

  // By which the mean loss of each pass counts in that of the step, which is the mean over the
  // predicted tokens of all passes and ranks.
  LossWeights WeightsOf(const v1::StepRecord& record) {
    if (!LearnsAnswers(spec_.data())) return {};
    const double weight = GradientWeight(spec_, record);
    const double positions = static_cast<double>(TokensPerStep(spec_)) /
                             (static_cast<double>(passes_.count) * launch_.world_size());
    loss_weights_.clear();
    for (const int64_t predicted : predicted_) {
      loss_weights_.push_back(
          static_cast<float>(weight * static_cast<double>(predicted) / positions));
    }
    return {.gradient = static_cast<float>(weight), .passes = loss_weights_};
  }

  absl::Status PlanProducts();
  absl::Status Connect();
  absl::StatusOr<uint64_t> HashOfDividedWeights();
  absl::Status CopyToHost(std::span<float> to, std::span<const float> from);
  std::shared_ptr<float> PinnedFloats(int64_t floats);

  const ExecutorOptions options_;
  const v1::WorkerLaunch& launch_;
  const v1::JobSpec& spec_;
  const Passes passes_;
  Stack stack_;                      // of the pass that is being loaded
  std::vector<int64_t> predicted_;   // with loss_on: assistant, of each pass, on this rank
  std::vector<float> loss_weights_;  // of each pass, in the step that runs
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<NcclComm> nccl_;         // null on one GPU; graphs that use it go before it
  std::unique_ptr<ContextGroup> context_;  // null without context parallelism
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<GpuStep> step_;
  cuda::DeviceMemory hash_;          // uint64_t [kHashes]
  cuda::PinnedMemory hash_on_host_;  // the same on the host
  cuda::DeviceMemory piece_;   // float [kPieceFloats] of another rank; only with divided state
  cuda::DeviceMemory number_;  // float, summed in Connect(); freed late: see main.cc
  std::string slow_path_;      // nccl::FallToSockets()
  int64_t steps_ = 0;
  int64_t gpu_bytes_ = 0;              // in use on the GPU after the first steps
  std::atomic<int64_t> unpinned_ = 0;  // 1: the checkpoint snapshot is not in pinned memory
};

absl::Status GpuExecutor::PlanProducts() {
  ModelConfig config = ModelConfigOf(spec_);
  config.attention.dtype = DType::kBf16;
  config.attention.shape.batch = passes_.sequences;
  NSA_RETURN_IF_ERROR(config.DivideContext(ContextOf(spec_)));
  NSA_RETURN_IF_ERROR(gpu_->Plan(ProductsOf(config, passes_.count)));
  // Those of all ranks: rank 0 records its choices in checkpoints for all.
  const int32_t world_size = launch_.world_size();
  const Shares shares = ShardsOptimizer(spec_, world_size)
                            ? Shares(*options_.layout, spec_.train(), world_size)
                            : Shares(options_.layout->size());
  for (int32_t rank = 0; rank < shares.ranks(); ++rank) {
    NSA_RETURN_IF_ERROR(
        gpu_->Plan(Optimizer::Products(spec_.train(), *options_.layout, shares.of(rank))));
  }
  return absl::OkStatus();
}

// Two bf16 weights are hashed as one fp32 value; shares, and pieces of them, begin and end at even
// elements.
ConstTensor Pairs(const Tensor& half) { return {half.data, half.size / 2, DType::kF32}; }

// With divided state the fp32 weights of a share exist once, so what the ranks compare are their
// copies of the bf16 weights: to the sum of the hashes of all shares each rank adds by how much its
// bf16 weights differ from those that the ranks of the shares have made, which is 0 where nothing
// is wrong.
absl::StatusOr<uint64_t> GpuExecutor::ParametersHash() {
  step_->BeginEvaluation(Phase::kTelemetry);
  if (state_->weights.has_value()) return HashOfDividedWeights();
  auto* const hash = static_cast<uint64_t*>(hash_.data());
  const auto* const on_host = static_cast<const uint64_t*>(hash_on_host_.data());
  const Slice share = state_->share();
  NSA_RETURN_IF_ERROR(nsa::ParametersHash(
      step_->exec(), {.values = state_->parameters.of(share), .first = share.begin, .hash = hash}));
  if (state_->sharded) {
    NSA_RETURN_IF_ERROR(
        nsa::ParametersHash(step_->exec(), {.values = Pairs(state_->parameters.half(share)),
                                            .first = share.begin / 2,
                                            .hash = hash + 1}));
    NSA_RETURN_IF_ERROR(nsa::ParametersHash(
        step_->exec(), {.values = Pairs(state_->parameters.half()), .hash = hash + 2}));
  }
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(gpu_->stream(), hash_on_host_.data(), hash, kHashes * sizeof(*hash)));
  NSA_RETURN_IF_ERROR(step_->Wait());
  if (!state_->sharded) return on_host[0];
  NSA_ASSIGN_OR_RETURN(const std::vector<uint64_t> all,
                       ExchangeHashes(options_.comm, on_host[0] - on_host[1]));
  return std::accumulate(all.begin(), all.end(), on_host[2]);
}

// Where each rank has the weights of its share only, no rank has a copy to compare them with: to
// the sum of the hashes of all shares each rank adds by how much its bf16 weights differ from its
// fp32 weights, rounded, which is 0 where nothing is wrong.
absl::StatusOr<uint64_t> GpuExecutor::HashOfDividedWeights() {
  const Exec& exec = step_->exec();
  const Slice share = state_->share();
  auto* const hash = static_cast<uint64_t*>(hash_.data());
  const auto* const on_host = static_cast<const uint64_t*>(hash_on_host_.data());
  uint64_t own = 0, wrong = 0;
  for (int64_t begin = share.begin; begin < share.end; begin += kPieceFloats) {
    const Slice piece = {begin, std::min(begin + kPieceFloats, share.end)};
    const ConstTensor values = state_->parameters.of(piece);
    const Tensor rounded(piece_.data(), piece.size(), DType::kBf16);
    NSA_RETURN_IF_ERROR(Convert(exec, values, rounded));
    NSA_RETURN_IF_ERROR(
        nsa::ParametersHash(exec, {.values = values, .first = begin, .hash = hash}));
    NSA_RETURN_IF_ERROR(nsa::ParametersHash(
        exec,
        {.values = Pairs(state_->parameters.half(piece)), .first = begin / 2, .hash = hash + 1}));
    NSA_RETURN_IF_ERROR(nsa::ParametersHash(
        exec, {.values = Pairs(rounded), .first = begin / 2, .hash = hash + 2}));
    NSA_RETURN_IF_ERROR(
        cuda::CopyBytes(gpu_->stream(), hash_on_host_.data(), hash, kHashes * sizeof(*hash)));
    NSA_RETURN_IF_ERROR(step_->Wait());
    own += on_host[0];
    wrong += on_host[1] - on_host[2];
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, ExchangeHashes(options_.comm, own));
  return std::accumulate(all.begin(), all.end(), wrong);
}

// Sends pieces from GPU to GPU; what this rank wants of a piece goes on to its host memory.
absl::Status GpuExecutor::ReadState(StatePart part, const Slice& wanted, bool local,
                                    std::span<float> to) {
  const Arena& arena = PartOf(*state_, part);
  if (local) return wanted.empty() ? absl::OkStatus() : CopyToHost(to, arena.of(wanted));
  step_->BeginEvaluation(Phase::kCheckpoint);
  auto* const piece = static_cast<float*>(piece_.data());
  const absl::Status sent =
      ForEachPiece(state_->shares, kPieceFloats, [&](int32_t rank, const Slice& at) {
        const void* const from = rank == state_->rank ? arena.of(at).data() : piece;
        NSA_RETURN_IF_ERROR(step_->SendPiece(from, piece, 4 * at.size(), rank));
        const Slice common = at.Common(wanted);
        if (common.empty()) return absl::OkStatus();
        // A copy to memory that is not pinned would wait for the other rank without a limit.
        NSA_RETURN_IF_ERROR(step_->Wait());
        return CopyToHost(to.subspan(common.begin - wanted.begin, common.size()),
                          {piece + (common.begin - at.begin), static_cast<size_t>(common.size())});
      });
  NSA_RETURN_IF_ERROR(sent);
  return step_->Wait();
}

// The ranks' GPUs meet, and sum one number: NCCL connects them with the first sum, and the
// transport that it picked is logged before the first step.
absl::Status GpuExecutor::Connect() {
  options_.page->SetPhase(Phase::kWaitingForPeers);
  if (const auto replaced = nccl::ReplacedEnvironment(); !replaced.empty()) {
    spdlog::info("variables of NCCL that this program sets: {}", nccl::ReplacedText(replaced));
  }
  const char* const library = std::getenv("NSA_NCCL_LIBRARY");
  NSA_ASSIGN_OR_RETURN(
      nccl_, NcclComm::Connect(
                 {.host = options_.comm,
                  .timeout = PeerTimeout(absl::Seconds(spec_.restart().hang_timeout_seconds())),
                  .library = library == nullptr ? "" : library,
                  .status_page = options_.page}));
  NSA_ASSIGN_OR_RETURN(number_, cuda::DeviceMemory::Allocate(sizeof(float), "first sum"));
  NSA_RETURN_IF_ERROR(
      nccl_->AllReduceSum("connections", static_cast<float*>(number_.data()), 1, gpu_->stream()));
  NSA_RETURN_IF_ERROR(nccl_->WaitFor("connections", [this] { return cuda::Done(gpu_->stream()); }));
  slow_path_ = nccl::FallToSockets(nccl::ReadLog(), nccl::ActiveRdmaPorts());
  options_.page->SetPhase(Phase::kStarting);
  return absl::OkStatus();
}

absl::Status GpuExecutor::CopyToHost(std::span<float> to, std::span<const float> from) {
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(gpu_->stream(), to.data(), from.data(),
                                      static_cast<int64_t>(from.size_bytes())));
  return cuda::Synchronize(gpu_->stream());
}

// Copies to pinned memory run at the bus's speed, copies to other memory at a tenth of it.
std::shared_ptr<float> GpuExecutor::PinnedFloats(int64_t floats) {
  auto memory = cuda::PinnedMemory::Allocate(4 * floats, "checkpoint snapshot");
  if (!memory.ok()) {
    ++unpinned_;
    spdlog::warn("checkpoint_pinned_memory: {}", std::string(memory.status().message()));
    return nullptr;
  }
  const auto held = std::make_shared<cuda::PinnedMemory>(*std::move(memory));
  return {held, static_cast<float*>(held->data())};
}

void GpuExecutor::PrintKernelTimes(int64_t step) const {
  if (!options_.time_kernels) return;
  const std::map<std::string, GpuProgress::KernelTime> times = step_->KernelTimes();
  std::vector<std::pair<std::string, GpuProgress::KernelTime>> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double sum = 0;
  for (const auto& [name, time] : sorted) sum += time.seconds;
  absl::PrintF("kernel times of step %d, %.3f ms\n", step, 1e3 * sum);
  for (const auto& [name, time] : sorted) {
    absl::PrintF("%9.3f ms %5.1f %% %5d calls  %s\n", 1e3 * time.seconds, 100 * time.seconds / sum,
                 time.calls, name);
  }
}

}  // namespace

std::unique_ptr<StepExecutor> MakeGpuExecutor(const ExecutorOptions& options) {
  return std::make_unique<GpuExecutor>(options);
}

}  // namespace nsa::train
