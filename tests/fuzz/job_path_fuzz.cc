// Any path as one that a job names, in a tree with links, a pipe and a device: whatever
// OpenJobFile() opens is a regular file beneath the root, and no refusal quotes a file.
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "common/base/job_file.h"
#include "tests/fuzz/fuzz.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

namespace fs = std::filesystem;

constexpr char kSecret[] = "classified";

// The root, beside a file that no path may reach.
fs::path MakeTree() {
  const fs::path folder = fs::canonical(nsa::fuzz::Folder());
  const fs::path root = folder / "root";
  fs::create_directories(root / "a/b");
  nsa::fuzz::File("outside", kSecret);
  nsa::fuzz::File("root/f", "f");
  nsa::fuzz::File("root/a/f", "f");
  nsa::fuzz::File("root/a/b/f", "f");
  fs::create_symlink(folder / "outside", root / "l");
  fs::create_symlink("../../outside", root / "a/l");
  fs::create_directory_symlink("..", root / "a/u");
  fs::create_directory_symlink(root, root / "a/b/r");
  mkfifo((root / "p").c_str(), 0600);
  return root;
}

// A path of known parts, or any bytes.
std::string Path(Input* input, const fs::path& root) {
  constexpr const char* kParts[] = {"a", "b", "f", "l", "u", "r", "p", "..", ".", "", "outside"};
  const uint8_t kind = input->Byte();
  if (kind % 4 == 0) return std::string(input->Rest());
  std::string path = kind % 4 == 1 ? "" : root.string();
  while (!input->empty()) path += std::string("/") + kParts[input->Byte() % std::size(kParts)];
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path root = MakeTree();
  Input input(data, size);
  const std::string path = Path(&input, root).substr(0, 4000);
  const nsa::JobFileScope scope({{root}, ""});
  const auto text = nsa::ReadJobFile(path, 1 << 20);
  RequireRefusal(text.status());
  // A refusal names the path, which may have these words itself.
  const bool secret = path.find(kSecret) == std::string::npos &&
                      text.status().message().find(kSecret) != std::string::npos;
  Require(text.ok() ? *text == "f" : !secret, path);
  const auto fd = nsa::OpenJobFile(path);
  if (!fd.ok()) return 0;
  struct stat info {};
  Require(fstat(fd->get(), &info) == 0 && S_ISREG(info.st_mode), path);
  const fs::path real = fs::read_symlink("/proc/self/fd/" + std::to_string(fd->get()));
  Require(real.string().starts_with(root.string() + "/"), path);
  return 0;
}
