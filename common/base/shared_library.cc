#include "common/base/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kFolders = {"/usr/local/cuda/lib64", "/usr/local/cuda/lib",
                                                 "/usr/lib/x86_64-linux-gnu",
                                                 "/usr/local/cuda/targets/x86_64-linux/lib"};

SharedLibrary Load(const std::string& file) {
  SharedLibrary library = {.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), .path = file};
  link_map* map = nullptr;
  if (library.handle != nullptr && dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 &&
      map->l_name[0] != '\0') {
    library.path = map->l_name;
  }
  return library;
}

// Entries of `folder` whose names begin with `prefix`, in alphabetical order.
std::vector<fs::path> Entries(const fs::path& folder, const char* prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (absl::StartsWith(entry.path().filename().string(), prefix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

absl::StatusOr<void*> SharedLibrary::Find(const char* name) const {
  if (void* address = dlsym(handle, name)) return address;
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": no function ", name, "; install a newer version"));
}

std::vector<std::string> PipFolders(const std::string& path,
                                    const std::vector<std::string>& pip_folders) {
  std::vector<std::string> folders;
  std::error_code error;
  for (const absl::string_view bin : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const fs::path python(std::string(bin) + "/python3");
    if (!fs::exists(python, error)) continue;
    // The environment is the folder above bin/, even if bin/python3 is a link to another folder.
    const fs::path lib = python.parent_path().parent_path() / "lib";
    for (const fs::path& version : Entries(lib, "python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const std::string& pip_folder : pip_folders) {
          const fs::path folder = version / packages / pip_folder;
          if (fs::is_directory(folder, error)) folders.push_back(folder.string());
        }
      }
    }
  }
  return folders;
}

absl::StatusOr<SharedLibrary> OpenSharedLibrary(const LibrarySearch& search) {
  if (!search.file.empty()) {
    SharedLibrary library = Load(search.file);
    if (library.handle != nullptr) return library;
    const char* why = dlerror();
    return absl::NotFoundError(
        absl::StrCat(search.what, ": ", why == nullptr ? search.file : why, "; ", search.help));
  }
  const char* path = std::getenv("PATH");
  std::vector<std::string> folders(kFolders.begin(), kFolders.end());
  const auto pip = PipFolders(path == nullptr ? "" : path, search.pip_folders);
  folders.insert(folders.end(), pip.begin(), pip.end());
  for (const std::string& name : search.names) {
    SharedLibrary library = Load(name);  // the loader's path
    for (size_t i = 0; library.handle == nullptr && i < folders.size(); ++i) {
      library = Load(absl::StrCat(folders[i], "/", name));
    }
    if (library.handle != nullptr) return library;
  }
  return absl::NotFoundError(absl::StrCat(
      search.what, ": not found (", absl::StrJoin(search.names, ", "), " in the loader's path, ",
      absl::StrJoin(folders, ", "), " and ", absl::StrJoin(search.pip_folders, ", "),
      " of a Python on PATH); ", search.help));
}

}  // namespace nsa
