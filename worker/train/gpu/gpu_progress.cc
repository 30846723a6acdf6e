#include "worker/train/gpu/gpu_progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/optimizer/step.h"

namespace nsa::train {
namespace {

constexpr int64_t kStampOffset = 128;
constexpr useconds_t kPollInterval = 50;
// How long a wait looks without a pause, at most, on either side of the end that it expects. It
// gains half a pause, however long the step is.
constexpr absl::Duration kMostWithoutPause = absl::Microseconds(500);

// Kernels that are always marked: those of the attention, others that run long, and exchanges,
// which wait for other ranks.
constexpr std::array<std::string_view, 13> kMarked = {"compressed_attention",
                                                      "compressed_attention_backward",
                                                      "select_blocks",
                                                      "selected_attention",
                                                      "selected_attention_backward",
                                                      "window_attention",
                                                      "window_attention_backward",
                                                      "gate",
                                                      "gate_backward",
                                                      "cross_entropy",
                                                      "embedding_backward",
                                                      "exchange_heads",
                                                      "spin"};

// Whether a family begins with a kernel of ours, which writes its mark itself. The matrix products
// are cuBLASLt's, exchanges are NCCL's.
bool WritesMark(std::string_view name) {
  return name != "matmul" && name != "copy" && name != "zero" && name != "exchange_heads";
}

bool IsMarked(std::string_view name) {
  return std::find(kMarked.begin(), kMarked.end(), name) != kMarked.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuProgress>> GpuProgress::Create(StatusPage* page,
                                                                 bool every_kernel,
                                                                 int32_t micro_batches) {
  const int32_t max_stamps = Stamps(micro_batches, every_kernel);
  auto progress = std::unique_ptr<GpuProgress>(new GpuProgress(page, every_kernel, max_stamps));
  const int64_t bytes = kStampOffset + int64_t{8} * max_stamps;
  NSA_ASSIGN_OR_RETURN(progress->memory_, cuda::PinnedMemory::Allocate(bytes, "progress"));
  return progress;
}

int32_t GpuProgress::Stamps(int32_t micro_batches, bool every_kernel) {
  const int32_t phases = 2 * (2 * micro_batches + 8);
  return every_kernel ? std::max(phases, 16384) : phases;
}

int32_t* GpuProgress::word() const { return static_cast<int32_t*>(memory_.data()); }
const int32_t* GpuProgress::never() const { return word() + 16; }
int64_t* GpuProgress::stamps() const {
  return reinterpret_cast<int64_t*>(static_cast<std::byte*>(memory_.data()) + kStampOffset);
}

Exec GpuProgress::Watch(const Exec& exec) {
  exec_ = exec;
  Exec watched = exec;
  watched.mark = &pending_;
  watched.on_kernel_context = this;
  watched.on_kernel = [](void* self, const char* name) {
    static_cast<GpuProgress*>(self)->EnterKernel(name);
  };
  return watched;
}

void GpuProgress::Begin() {
  marks_.resize(kept_);
  stamps_used_ = stamps_kept_;
  current_ = {};
  pending_ = {};
  shown_ = -1;
  error_ = absl::OkStatus();
  *word() = -1;
}

void GpuProgress::Keep() {
  kept_ = marks_.size();
  stamps_kept_ = stamps_used_;
}

void GpuProgress::Drop() {
  kept_ = 0;
  stamps_kept_ = 0;
}

void GpuProgress::EnterPhase(Phase phase, int32_t micro_batch) {
  current_.phase = phase;
  current_.micro_batch = micro_batch;
  current_.layer = -1;
  Add("", /*begins_phase=*/true);
}

void GpuProgress::EnterLayer(int32_t layer) {
  current_.layer = layer;
  current_.kernel = "";
}

void GpuProgress::EnterKernel(const char* name) {
  const bool begins = current_.kernel[0] == '\0';
  current_.kernel = name;
  if (begins || every_kernel_ || IsMarked(name)) Add(name, /*begins_phase=*/false);
}

void GpuProgress::Add(const char* kernel, bool begins_phase) {
  Mark mark = current_;
  mark.kernel = kernel;
  mark.begins_phase = begins_phase;
  if ((begins_phase || every_kernel_) && stamps_used_ < max_stamps_) mark.stamp = stamps_used_++;
  current_.kernel = kernel;
  // No kernel has taken the mark before this one: it may have a time to record.
  if (pending_.word != nullptr) Launch(std::exchange(pending_, {}));
  const cuda::PendingMark written = {.word = word(),
                                     .nanos = mark.stamp < 0 ? nullptr : stamps() + mark.stamp,
                                     .value = static_cast<int32_t>(marks_.size())};
  if (begins_phase || !WritesMark(kernel)) {
    Launch(written);
  } else {
    pending_ = written;
  }
  marks_.push_back(mark);
  // Shown here, too, and not only while the host waits: when a kernel does not end, the launch
  // queue fills up and the host blocks in a launch.
  Show();
}

// Writes a mark by a kernel of its own.
void GpuProgress::Launch(const cuda::PendingMark& mark) {
  const absl::Status status = cuda::Mark(exec_, mark);
  if (error_.ok()) error_ = status;
}

double GpuProgress::Seconds(Phase phase, bool in_graph) const {
  const size_t begin = in_graph ? 0 : kept_, end = in_graph ? kept_ : marks_.size();
  double seconds = 0;
  int32_t open = -1;
  for (size_t i = begin; i < end; ++i) {
    if (!marks_[i].begins_phase || marks_[i].stamp < 0) continue;
    if (open >= 0) {
      seconds += static_cast<double>(stamps()[marks_[i].stamp] - stamps()[open]) * 1e-9;
    }
    open = marks_[i].phase == phase ? marks_[i].stamp : -1;
  }
  return seconds;
}

std::map<std::string, GpuProgress::KernelTime> GpuProgress::KernelTimes(bool in_graph) const {
  const size_t begin = in_graph ? 0 : kept_, end = in_graph ? kept_ : marks_.size();
  std::map<std::string, KernelTime> times;
  for (size_t i = begin; i + 1 < end; ++i) {
    const Mark &mark = marks_[i], &next = marks_[i + 1];
    if (mark.stamp < 0 || next.stamp < 0) continue;
    KernelTime& time = times[absl::StrCat(PhaseName(mark.phase), " ", mark.kernel)];
    ++time.calls;
    time.seconds += static_cast<double>(stamps()[next.stamp] - stamps()[mark.stamp]) * 1e-9;
  }
  return times;
}

void GpuProgress::Show() {
  const int32_t at = std::atomic_ref<int32_t>(*word()).load(std::memory_order_acquire);
  if (at == shown_ || at < 0 || at >= static_cast<int32_t>(marks_.size())) return;
  shown_ = at;
  const Mark& mark = marks_[static_cast<size_t>(at)];
  page_->SetMicroStep(mark.micro_batch);
  page_->SetPhase(mark.phase);
  page_->SetLayer(mark.layer);
  page_->SetKernel(mark.kernel);
}

absl::StatusOr<bool> GpuProgress::Poll() {
  NSA_RETURN_IF_ERROR(error_);
  const absl::StatusOr<bool> done = cuda::Done(exec_.stream);
  Show();
  return done;
}

bool GpuProgress::NearEnd(absl::Duration waited, absl::Duration one_before) {
  return absl::AbsDuration(waited - one_before) <= std::min(0.03 * one_before, kMostWithoutPause);
}

absl::Status GpuProgress::Wait() {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool done, Poll());
    const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    if (done) {
      last_wait_ = waited;
      return absl::OkStatus();
    }
    if (NearEnd(waited, last_wait_)) {
      std::this_thread::yield();
    } else {
      usleep(kPollInterval);
    }
  }
}

}  // namespace nsa::train
