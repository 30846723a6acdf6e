// Somebody else's folder that is put, by a link, in place of one that a worker writes into.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"

namespace nsa {

// Its files have names that a worker could take for its own.
class PreciousFolder {
 public:
  explicit PreciousFolder(std::filesystem::path path) : path_(std::move(path)) {
    for (const char* folder :
         {".", "tb", "checkpoints", "checkpoints/step-00000001", "checkpoints/step-00000004.tmp-3",
          "step-00000001", "step-00000002", "step-00000003", "step-00000004.tmp-3"}) {
      std::filesystem::create_directories(path_ / folder);
      for (const char* name :
           {"model.safetensors", "optimizer-00000-of-00001.safetensors",
            "optimizer-00001-of-00002.safetensors", "optimizer-00001-of-00002.safetensors.done",
            "state.json", "PINNED", ".lock", "latest.ckpt", "latest.ckpt.tmp", "owner.json",
            "training.csv", "heartbeat_rank0.jsonl", "metrics.json", "metrics.json.tmp",
            "events.out.tfevents.nsa"}) {
        std::ofstream(path_ / folder / name) << "precious";
      }
    }
    before_ = Content();
  }

  const std::filesystem::path& path() const { return path_; }

  // Puts a link to this folder at `path`. What was there is renamed to `path` plus ".moved".
  void TakeThePlaceOf(const std::filesystem::path& path) const {
    std::filesystem::rename(path, path.string() + ".moved");
    std::filesystem::create_directory_symlink(path_, path);
  }
  void GiveBack(const std::filesystem::path& path) const {
    std::filesystem::remove(path);
    std::filesystem::rename(path.string() + ".moved", path);
  }

  void ExpectUntouched() const { EXPECT_EQ(Content(), before_); }

 private:
  std::map<std::string, std::string> Content() const {
    std::map<std::string, std::string> content;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      content[entry.path().string()] =
          entry.is_directory() ? "" : ReadWholeFile(entry.path()).value_or("unreadable");
    }
    return content;
  }

  const std::filesystem::path path_;
  std::map<std::string, std::string> before_;
};

}  // namespace nsa
