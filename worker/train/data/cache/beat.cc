#include "worker/train/data/cache/beat.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <system_error>
#include <utility>

#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kBetween = absl::Milliseconds(200);

}  // namespace

Beat::Beat(std::filesystem::path file, const std::atomic<int64_t>& counter)
    : file_(std::move(file)), counter_(counter), thread_([this] { Run(); }) {}

Beat::~Beat() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void Beat::Run() {
  NameThread("beat");
  int64_t seen = -1;
  const MutexLock lock(&mutex_);
  while (!ending_) {
    const int64_t now = counter_;
    if (now != seen) utimensat(AT_FDCWD, file_.c_str(), nullptr, 0);
    seen = now;
    changed_.WaitFor(&mutex_, kBetween);
  }
}

bool BeatWatch::WentOn() {
  std::error_code error;
  const std::filesystem::file_time_type now = std::filesystem::last_write_time(file_, error);
  if (error || now == last_) return false;
  last_ = now;
  return true;
}

}  // namespace nsa::train
