// A cgroup of version 2 for a test, where root can make one.
#pragma once

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace nsa {

class RealCgroup {
 public:
  explicit RealCgroup(const std::string& name) {
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      struct statfs info {};
      if (statfs(mount, &info) != 0 || info.f_type != CGROUP2_SUPER_MAGIC) continue;
      const std::string path = std::string(mount) + "/nsa-" + name + "-" + std::to_string(getpid());
      if (mkdir(path.c_str(), 0755) == 0) path_ = path;
    }
  }
  ~RealCgroup() {
    if (!usable()) return;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
      if (entry.is_directory(error)) rmdir(entry.path().c_str());
    }
    rmdir(path_.c_str());
  }
  RealCgroup(const RealCgroup&) = delete;
  RealCgroup& operator=(const RealCgroup&) = delete;

  bool usable() const { return !path_.empty(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace nsa
