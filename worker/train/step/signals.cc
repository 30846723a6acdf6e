#include "worker/train/step/signals.h"

#include <csignal>
#include <ctime>
#include <utility>

#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void BlockSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void UnblockSignals() {
  std::signal(SIGPIPE, SIG_DFL);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

SignalWatch::SignalWatch(std::function<void(int signal)> on_signal) {
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    NameThread("signals");
    const sigset_t signals = StopSignals();
    const timespec wait = {.tv_nsec = 100'000'000};  // the destructor may wait this long
    while (!done_.load()) {
      const int signal = sigtimedwait(&signals, nullptr, &wait);
      if (signal > 0) on_signal(signal);
    }
  });
}

SignalWatch::~SignalWatch() {
  done_.store(true);
  thread_.join();
}

}  // namespace nsa::train
