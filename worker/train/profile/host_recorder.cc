#include "worker/train/profile/host_recorder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace nsa::train {

HostRecorder::HostRecorder(Trace* trace, std::vector<MemoryGauge> gauges,
                           std::function<int64_t()> now)
    : trace_(trace),
      gauges_(std::move(gauges)),
      now_(std::move(now)),
      next_sample_(gauges_.size(), 0) {}

void HostRecorder::Open(Range* range, TraceEvent event, std::string_view name, int64_t now) {
  event.begin = now;
  event.name = trace_->Name(name);
  *range = {.open = true, .event = event};
}

void HostRecorder::Close(Range* range, int64_t now) {
  if (!std::exchange(range->open, false)) return;
  range->event.end = now;
  trace_->Add(range->event);
}

void HostRecorder::Sample(int64_t now) {
  for (size_t i = 0; i < gauges_.size(); ++i) {
    if (now < next_sample_[i]) continue;
    next_sample_[i] = now + gauges_[i].every_nanos;
    trace_->Add({.kind = TraceKind::kMemory,
                 .name = trace_->Name(gauges_[i].name),
                 .begin = now,
                 .end = now,
                 .value = gauges_[i].bytes()});
  }
}

void HostRecorder::BeginStep(int64_t step) {
  const int64_t now = step_.open ? EndStep() : now_();
  Open(&step_, {.kind = TraceKind::kStep, .value = step}, absl::StrCat("step ", step), now);
  micro_step_ = 0;
  Sample(now);
}

int64_t HostRecorder::EndStep() {
  const int64_t now = now_();
  for (Range* range : {&kernel_, &layer_range_, &phase_, &collective_, &step_}) Close(range, now);
  layer_ = -1;
  Sample(now);
  return now;
}

// A phase that is shown again goes on: on a GPU every mark repeats it.
void HostRecorder::OnPhase(Phase phase) {
  if (!step_.open || (phase == current_ && phase_.open)) return;
  const int64_t now = now_();
  for (Range* range : {&kernel_, &layer_range_, &phase_}) Close(range, now);
  current_ = phase;
  layer_ = -1;
  Open(&phase_, {.kind = TraceKind::kPhase, .value = micro_step_}, PhaseName(phase), now);
  Sample(now);
}

void HostRecorder::OnLayer(int32_t layer) {
  if (!step_.open || layer == layer_) return;
  const int64_t now = now_();
  Close(&kernel_, now);
  Close(&layer_range_, now);
  layer_ = layer;
  if (layer < 0) return;
  Open(&layer_range_, {.kind = TraceKind::kLayer, .value = layer}, absl::StrCat("layer ", layer),
       now);
  Sample(now);
}

void HostRecorder::OnKernel(std::string_view kernel) {
  if (!step_.open) return;
  const int64_t now = now_();
  Close(&kernel_, now);
  if (!kernel.empty()) Open(&kernel_, {.kind = TraceKind::kKernel}, kernel, now);
}

void HostRecorder::OnCollective(std::string_view name) {
  if (!step_.open) return;
  const int64_t now = now_();
  Close(&kernel_, now);
  Close(&collective_, now);
  if (name.empty()) return;
  Open(&collective_, {.kind = TraceKind::kCollective, .track = kCollectiveTrack}, name, now);
}

}  // namespace nsa::train
