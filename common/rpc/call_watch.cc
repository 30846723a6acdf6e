#include "common/rpc/call_watch.h"

#include "common/base/clock.h"
#include "common/base/thread_name.h"
#include "grpcpp/client_context.h"

namespace nsa {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(1);
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

}  // namespace

CallWatch::CallWatch() : thread_([this] { Loop(); }) {}

CallWatch::~CallWatch() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void CallWatch::Loop() {
  NameThread("call-watch");
  const MutexLock lock(&mutex_);
  while (!ending_) {
    EndOverdue();
    if (entries_.empty()) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitFor(&mutex_, kLookEvery);
    }
  }
}

void CallWatch::EndOverdue() {
  const absl::Duration now = RealClock().Monotonic();
  for (Entry& entry : entries_) {
    if (entry.overran || now < entry.end) continue;
    entry.overran = true;
    entry.context->TryCancel();
  }
}

CallWatch::Guard::Guard(CallWatch* watch, grpc::ClientContext* context, absl::Duration patience)
    : watch_(watch) {
  const absl::Duration end = RealClock().Monotonic() + patience + kGrace;
  const MutexLock lock(&watch_->mutex_);
  entry_ = watch_->entries_.insert(watch_->entries_.end(), {.context = context, .end = end});
  watch_->changed_.Signal();
}

CallWatch::Guard::~Guard() {
  const MutexLock lock(&watch_->mutex_);
  watch_->entries_.erase(entry_);
}

bool CallWatch::Guard::overran() const {
  const MutexLock lock(&watch_->mutex_);
  return entry_->overran;
}

}  // namespace nsa
