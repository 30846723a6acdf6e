#include "worker/bench/decode.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/current_folder.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/job/load.h"
#include "common/nsa/visibility.h"
#include "kernels/cuda/device.h"
#include "worker/bench/dense.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/model/model_config.h"

namespace nsa::bench {
namespace {

// Steps that are not counted: they load kernels and choose algorithms.
constexpr int kWarmUp = 8;

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

int32_t KeysRead(Branch branch, const NsaShape& shape, int32_t t) {
  switch (branch) {
    case kCmp:
      return BranchRule<kCmp>::KeysRead(shape, t, 0);
    case kSel:
      return BranchRule<kSel>::KeysRead(shape, t, 0);
    default:
      return BranchRule<kWin>::KeysRead(shape, t, 0);
  }
}

// Keys that the tokens from `begin` to `end` − 1 read, mean over these tokens and all layers.
double MeanKeys(const v1::JobSpec& spec, int32_t begin, int32_t end) {
  train::ModelConfig config = train::ModelConfigOf(spec);
  config.attention.shape.seq_len = end;  // a full layer reads all tokens
  double sum = 0;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const NsaLayerConfig attention = config.AttentionOf(layer);
    for (const Branch branch : {kCmp, kSel, kWin}) {
      if (!attention.has(branch)) continue;
      for (int32_t t = begin; t < end; ++t) sum += KeysRead(branch, attention.shape, t);
    }
  }
  return sum / config.n_layers / (end - begin);
}

// Reads the tokens but the last `steps` in every slot, then those one by one, in all slots
// together. Returns the seconds of the last prompt and of each step.
absl::StatusOr<std::vector<double>> Read(std::span<const int32_t> tokens, int steps,
                                         train::Decoder* decoder) {
  const auto prompt = tokens.first(tokens.size() - static_cast<size_t>(steps));
  std::vector<double> seconds(1);
  std::vector<train::SlotToken> next(decoder->slots());
  for (int32_t slot = 0; slot < decoder->slots(); ++slot) {
    decoder->Reset(slot);
    const auto begin = SteadyClock::now();
    NSA_RETURN_IF_ERROR(decoder->Prefill(slot, prompt).status());
    seconds[0] = SecondsSince(begin);
    next[slot].slot = slot;
  }
  for (const int32_t token : tokens.subspan(prompt.size())) {
    for (train::SlotToken& one : next) one.token = token;
    const auto begin = SteadyClock::now();
    NSA_RETURN_IF_ERROR(decoder->Step(next).status());
    seconds.push_back(SecondsSince(begin));
  }
  return seconds;
}

// A model's random parameters on a device.
class Weights {
 public:
  // `gpu`: null for the CPU.
  static absl::StatusOr<std::unique_ptr<Weights>> Make(const v1::JobSpec& spec,
                                                       const train::Gpu* gpu) {
    std::unique_ptr<Weights> weights(new Weights(spec));
    train::Initialize(spec.train().seed(), &weights->arena_);
    if (gpu == nullptr) return weights;
    NSA_ASSIGN_OR_RETURN(
        train::Arena on_gpu,
        train::Arena::Create(&weights->layout_, {.backend = Backend::kCuda, .half = true},
                             "weights"));
    NSA_RETURN_IF_ERROR(train::CopyArena(gpu->exec(), weights->arena_, &on_gpu));
    weights->arena_ = std::move(on_gpu);
    return weights;
  }
  Weights(const Weights&) = delete;  // the arena points at the layout

  const train::Arena& arena() const { return arena_; }

 private:
  explicit Weights(const v1::JobSpec& spec) : layout_(spec), arena_(&layout_) {}
  const train::ParameterLayout layout_;
  train::Arena arena_;
};

absl::StatusOr<v1::JobSpec> LoadSpec(const std::string& path) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_ASSIGN_OR_RETURN(JobFile file, LoadJobFile(path, here));
  ApplyDefaults(&file.spec);
  return file.spec;
}

void PrintRow(const char* attention, const DecodeTiming& timing, const DecodeTimes& times,
              const std::string& note) {
  absl::PrintF("%8d  %-9s %5d %11.1f %9.3f %9.3f %9.0f %13.0f %11.1f%s\n", timing.context,
               attention, timing.slots, 1e3 * times.prompt_seconds, 1e3 * times.median_seconds,
               1e3 * times.p95_seconds, timing.slots / times.median_seconds, times.keys,
               static_cast<double>(times.bytes) / (1 << 20), note);
  std::fflush(stdout);
}

absl::Status CheckTiming(const DecodeTiming& timing) {
  if (timing.steps >= 1 && timing.context > timing.steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "decode: context %d with %d steps (more than the steps; at least 1 is timed); take a longer "
      "context or fewer steps",
      timing.context, timing.steps));
}

// The model of a job, and the same with dense attention.
struct Models {
  v1::JobSpec spec;
  std::unique_ptr<Weights> weights, dense;  // dense: null unless it is wanted
};

absl::Status RunRow(const Exec& exec, const Models& models, const DecodeTiming& timing) {
  NSA_ASSIGN_OR_RETURN(const DecodeTimes times,
                       TimeDecode(exec, models.spec, models.weights->arena(), timing));
  PrintRow("nsa", timing, times, "");
  if (models.dense == nullptr) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const DecodeTimes dense, TimeDecode(exec, Dense(models.spec, timing.context),
                                                           models.dense->arena(), timing));
  PrintRow("dense", timing, dense,
           absl::StrFormat("  %.2f times as long", dense.median_seconds / times.median_seconds));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DecodeTimes> TimeDecode(const Exec& exec, const v1::JobSpec& spec,
                                       const train::Arena& parameters, const DecodeTiming& timing) {
  NSA_RETURN_IF_ERROR(CheckTiming(timing));
  const int32_t context = timing.context, steps = timing.steps, prompt = context - steps;
  NSA_ASSIGN_OR_RETURN(
      const std::unique_ptr<train::Decoder> decoder,
      train::Decoder::Create(exec, spec, &parameters, {.context = context, .slots = timing.slots}));
  std::mt19937 random(7);
  std::vector<int32_t> tokens(context);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % VocabOf(spec));
  const int warm_up = std::min(steps, kWarmUp);
  NSA_RETURN_IF_ERROR(
      Read(std::span(tokens).first(prompt + warm_up), warm_up, decoder.get()).status());
  NSA_ASSIGN_OR_RETURN(std::vector<double> seconds, Read(tokens, steps, decoder.get()));
  std::sort(seconds.begin() + 1, seconds.end());
  return DecodeTimes{.prompt_seconds = seconds[0],
                     .median_seconds = seconds[1 + steps / 2],
                     .p95_seconds = seconds[1 + std::min(steps - 1, steps * 95 / 100)],
                     .keys = MeanKeys(spec, prompt, context),
                     .bytes = decoder->bytes()};
}

absl::Status RunDecode(const DecodeOptions& options) {
  Models models;
  NSA_ASSIGN_OR_RETURN(models.spec, LoadSpec(options.job));
  std::unique_ptr<train::Gpu> gpu;  // null on the CPU
  if (options.device == "cuda" || (options.device.empty() && cuda::DeviceCount() > 0)) {
    NSA_ASSIGN_OR_RETURN(gpu, train::Gpu::Open());
  }
  const Exec exec = gpu == nullptr ? Exec() : gpu->exec();
  NSA_ASSIGN_OR_RETURN(models.weights, Weights::Make(models.spec, gpu.get()));
  if (options.vs_dense) {
    NSA_ASSIGN_OR_RETURN(models.dense, Weights::Make(Dense(models.spec, 1), gpu.get()));
  }
  absl::PrintF("%s: %d parameters, random; %s; steps of one token: %d\n", models.spec.name(),
               models.weights->arena().layout().count(),
               gpu == nullptr ? "CPU, fp32" : gpu->Description() + ", bf16", options.steps);
  absl::PrintF(
      " context  attention slots   prompt ms   step ms    p95 ms  tokens/s  keys a token  caches "
      "MiB\n");
  for (const int32_t context : options.contexts) {
    for (const int32_t slots : options.slots) {
      NSA_RETURN_IF_ERROR(
          RunRow(exec, models, {.context = context, .steps = options.steps, .slots = slots}));
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa::bench
