// Libraries that are found at run time, because they are too large to travel with us (cuBLASLt,
// NCCL) or belong to the driver. They stay loaded: unloading CUDA's libraries before the process
// ends is not safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace nsa {

struct LibrarySearch {
  std::string what;                      // "NCCL", for messages
  std::vector<std::string> names;        // file names, the best first: "libnccl.so.2"
  std::vector<std::string> pip_folders;  // of wheels, beneath site-packages: "nvidia/nccl/lib"
  std::string help;                      // how to get it: "install libnccl2"
  std::string file;                      // when not empty: this file and nothing else
};

struct SharedLibrary {
  void* handle = nullptr;
  std::string path;  // the file that was loaded

  // Sets `function` to the function `name`; FailedPrecondition names the file that has none.
  template <class Function>
  absl::Status Resolve(const char* name, Function* function) const {
    NSA_ASSIGN_OR_RETURN(void* address, Find(name));
    *function = reinterpret_cast<Function>(address);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<void*> Find(const char* name) const;
};

// Looks in the loader's path, the usual CUDA and system folders, then beside every python3 on PATH.
// NotFound says what was looked for, where, and how to help.
absl::StatusOr<SharedLibrary> OpenSharedLibrary(const LibrarySearch& search);

// Folders `pip_folders` beneath the site-packages of every python3 on `path` (a value of PATH): of
// a virtual environment, of the system, of Conda. Those that exist, in the order of `path`.
std::vector<std::string> PipFolders(const std::string& path,
                                    const std::vector<std::string>& pip_folders);

}  // namespace nsa
