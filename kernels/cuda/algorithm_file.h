// The cuBLASLt algorithm of each shape, kept on disk, so that the choice by timing is made only
// once: a shape then gives the same bits in every run, in every rank of a host and after a restart.
//
// One text file per GPU model and library version, `cublaslt-<GPU>-<version>.txt`, with one line
// per shape, append-only. A line that cannot be parsed is ignored, and its shape is timed again.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nsa::cuda {

// $XDG_CACHE_HOME/nsa or ~/.cache/nsa; empty when neither variable is set.
std::string DefaultAlgorithmFolder();

// The bytes of a cublasLtMatmulAlgo_t, which cuBLASLt allows to be stored as they are.
using Algorithm = std::array<uint64_t, 8>;

// "1f 0 … 2": its words in hexadecimal, as in the file; and back, nothing if the text is another.
std::string FormatAlgorithm(const Algorithm& algorithm);
std::optional<Algorithm> ParseAlgorithm(std::string_view text);

class AlgorithmFile {
 public:
  // Nothing is stored when `folder` is empty. The folder is created when Lock() is first called.
  AlgorithmFile(const std::string& folder, const std::string& gpu, size_t library_version);
  ~AlgorithmFile();
  AlgorithmFile(const AlgorithmFile&) = delete;
  AlgorithmFile& operator=(const AlgorithmFile&) = delete;

  // Between Lock() and Unlock() no other process can choose: Lock, Find again, Add, Unlock. Lock()
  // fails without a folder or when the folder cannot be written; the caller must then use a choice
  // that need not be stored.
  absl::Status Lock();
  void Unlock();

  // The algorithm stored for `key` (no spaces), including lines that other processes have added.
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
