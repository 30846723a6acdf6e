// The out_dirs of the jobs that have not ended. No two of them may be the same folder, and none may
// lie inside another: a job deletes its old checkpoints.
#pragma once

#include <map>
#include <string>

namespace nsa::server {

// True if the paths are the same or one lies inside the other. Both are absolute and normal,
// without a slash at the end ("/" excepted).
bool Overlap(const std::string& a, const std::string& b);

class OutDirs {
 public:
  struct Taken {
    std::string path;
    std::string job_id;  // empty: no conflict
  };
  // A path of another job than `job_id` that overlaps with this one.
  Taken Conflict(const std::string& path, const std::string& job_id) const;

  void Add(const std::string& path, const std::string& job_id) { by_path_[path] = job_id; }
  void Remove(const std::string& path) { by_path_.erase(path); }

 private:
  std::map<std::string, std::string> by_path_;
};

}  // namespace nsa::server
