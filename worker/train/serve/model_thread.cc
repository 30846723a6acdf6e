#include "worker/train/serve/model_thread.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/thread_name.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

absl::Status Ending() {
  return absl::UnavailableError("the server is shutting down; send the request again later");
}

}  // namespace

ModelThread::ModelThread(Batch* batch, int threads)
    : batch_(*batch), thread_([this, threads] { Loop(threads); }) {}

ModelThread::~ModelThread() {
  End();
  thread_.join();
}

absl::Status ModelThread::Add(std::shared_ptr<Call> call) {
  call->Watch([this] { Wake(); });
  const MutexLock lock(&mutex_);
  if (ending_) return Ending();
  if (waiting_.size() >= kWaitingRequests) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("requests: %d wait for the model (at most %d); send this one again later",
                        waiting_.size(), kWaitingRequests));
  }
  waiting_.push_back(std::move(call));
  changed_.SignalAll();
  return absl::OkStatus();
}

void ModelThread::Leave(const std::shared_ptr<Call>& call) {
  call->Cancel();
  const MutexLock lock(&mutex_);
  std::erase(waiting_, call);
  std::erase(taken_, call);
}

ModelThread::Load ModelThread::load() const {
  const MutexLock lock(&mutex_);
  return {.waiting = waiting_.size(), .used = used_};
}

void ModelThread::End() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    calls.swap(taken_);
    calls.insert(calls.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    changed_.SignalAll();
  }
  for (const std::shared_ptr<Call>& call : calls) {
    call->End(Ending());
    call->Cancel();
  }
}

void ModelThread::Wake() {
  const MutexLock lock(&mutex_);
  woken_ = true;
  changed_.SignalAll();
}

void ModelThread::Loop(int threads) {
  NameThread("model");
  SetThreads(threads, 1);
  bool idle = true;
  while (TakeCalls(idle)) idle = !batch_.Compute();
}

// Gives the batch the calls that it has slots for. `idle`: it has nothing to compute until there is
// one, or one of its own changes. False at the end.
bool ModelThread::TakeCalls(bool idle) {
  const MutexLock lock(&mutex_);
  used_ = batch_.used();
  while (idle && !woken_ && !ending_ && (waiting_.empty() || !batch_.open())) {
    changed_.Wait(&mutex_);
  }
  woken_ = false;
  while (!waiting_.empty() && batch_.open()) {
    batch_.Add(waiting_.front());
    taken_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  used_ = batch_.used();
  return !ending_;
}

}  // namespace nsa::train::serve
