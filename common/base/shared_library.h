// Libraries that are loaded at run time because they are too large to distribute with the programs
// (cuBLASLt, NCCL) or belong to the driver. They stay loaded: it is not safe to unload CUDA's
// libraries before the process ends.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace nsa {

struct LibrarySearch {
  std::string what;                      // "NCCL", for messages
  std::vector<std::string> names;        // file names, the preferred first: "libnccl.so.2"
  std::vector<std::string> pip_folders;  // folders in site-packages: "nvidia/nccl/lib"
  std::string help;                      // how to install it: "install libnccl2"
  std::string file;                      // if not empty, only this file is tried
};

struct SharedLibrary {
  void* handle = nullptr;
  std::string path;  // the file that was loaded

  // Sets `function` to the function `name`. FailedPrecondition, with the path of the library, if it
  // has no such function.
  template <class Function>
  absl::Status Resolve(const char* name, Function* function) const {
    NSA_ASSIGN_OR_RETURN(void* address, Find(name));
    *function = reinterpret_cast<Function>(address);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<void*> Find(const char* name) const;
};

// Loads a library: for each name it searches the loader's path, the usual CUDA and system folders,
// and the Python packages of every python3 on PATH. The NotFound error says what was searched for,
// where, and how to install it.
absl::StatusOr<SharedLibrary> OpenSharedLibrary(const LibrarySearch& search);

// The existing `pip_folders` in the site-packages and dist-packages of every python3 on `path` (a
// value of PATH), whether it belongs to a virtual environment, the system or Conda. In the order of
// `path`.
std::vector<std::string> PipFolders(const std::string& path,
                                    const std::vector<std::string>& pip_folders);

}  // namespace nsa
