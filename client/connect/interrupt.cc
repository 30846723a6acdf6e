#include "client/connect/interrupt.h"

#include "common/base/thread_name.h"

namespace nsa::client {

void Interrupt::Raise(int signal) {
  MutexLock lock(&mutex_);
  const bool idle = cancels_.empty();
  raised_ = true;
  only_ctrl_c_ = only_ctrl_c_ && signal == SIGINT;
  // Under the lock, so that the `cancel` of a destroyed Scope is never called.
  for (const auto& [id, cancel] : cancels_) cancel();
  changed_.SignalAll();
  if (idle && when_idle_) when_idle_();
}

bool Interrupt::raised() const {
  MutexLock lock(&mutex_);
  return raised_;
}

bool Interrupt::ForgetCtrlC() {
  MutexLock lock(&mutex_);
  if (only_ctrl_c_) raised_ = false;
  return only_ctrl_c_;
}

bool Interrupt::SleepFor(absl::Duration duration) {
  Scope wakes_by_itself(this, [] {});
  MutexLock lock(&mutex_);
  while (!raised_) {
    if (changed_.WaitFor(&mutex_, duration)) break;
  }
  return !raised_;
}

Interrupt::Scope::Scope(Interrupt* interrupt, std::function<void()> cancel)
    : interrupt_(interrupt) {
  MutexLock lock(&interrupt_->mutex_);
  if (interrupt_->raised_) cancel();
  id_ = interrupt_->next_id_++;
  interrupt_->cancels_[id_] = std::move(cancel);
}

Interrupt::Scope::~Scope() {
  MutexLock lock(&interrupt_->mutex_);
  interrupt_->cancels_.erase(id_);
}

namespace {

// Ends the listener. Blocked like the others; only the destructor sends it to this thread.
constexpr int kQuit = SIGUSR1;

}  // namespace

SignalListener::SignalListener(Interrupt* interrupt) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, kQuit}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([signals, interrupt] {
    NameThread("signals");
    int signal = 0;
    while (sigwait(&signals, &signal) == 0 && signal != kQuit) interrupt->Raise(signal);
  });
}

SignalListener::~SignalListener() {
  pthread_kill(thread_.native_handle(), kQuit);
  thread_.join();
}

}  // namespace nsa::client
