// Notices that files are opened.
#pragma once

#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>

#include "common/base/fd.h"
#include "gtest/gtest.h"

namespace nsa {

// Watches a folder that exists: the folder and the files directly in it.
class OpenWatch {
 public:
  explicit OpenWatch(const std::filesystem::path& folder)
      : events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(events_.get(), folder.c_str(), IN_OPEN), 0) << folder;
  }

  // Whether one was opened since the last call.
  bool WasOpened() {
    char events[4096];
    bool any = false;
    while (read(events_.get(), events, sizeof(events)) > 0) any = true;
    return any;
  }

 private:
  Fd events_;
};

}  // namespace nsa
