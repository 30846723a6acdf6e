// Which cuBLASLt algorithm each shape uses, on disk, so that a choice made by timing is made once:
// the same shape then has the same bits in every run, in every rank of a host and after a restart.
//
// One text file a GPU model and library version, `cublaslt-<GPU>-<version>.txt`, one line a shape,
// only appended to. A line that cannot be read is not used (and its shape is chosen again).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace nsa::cuda {

// $XDG_CACHE_HOME/nsa or ~/.cache/nsa; empty when neither variable is set.
std::string DefaultAlgorithmFolder();

class AlgorithmFile {
 public:
  // cublasLtMatmulAlgo_t, which its library allows to be stored as it is.
  using Algorithm = std::array<uint64_t, 8>;

  // Nothing is kept when `folder` is empty. Folders are made when the first line is written.
  AlgorithmFile(const std::string& folder, const std::string& gpu, size_t library_version);
  ~AlgorithmFile();
  AlgorithmFile(const AlgorithmFile&) = delete;
  AlgorithmFile& operator=(const AlgorithmFile&) = delete;

  // Between the two no other process chooses: Lock, Find again, Add, Unlock. Without a folder, or
  // where it cannot be written, Lock() is not ok and the choice must be one that needs no memory.
  absl::Status Lock();
  void Unlock();

  // What is known of `key` (no spaces); reads what other processes have added.
  std::optional<Algorithm> Find(const std::string& key);
  // Only while locked.
  absl::Status Add(const std::string& key, const Algorithm& algorithm);

  const std::string& path() const { return path_; }

 private:
  void ReadNewLines();

  std::string path_;  // empty: nothing is kept
  int lock_ = -1;
  int64_t read_ = 0;  // bytes of the file that have been read
  std::map<std::string, Algorithm> known_;
};

}  // namespace nsa::cuda
