#include "server/store/out_dirs.h"

namespace nsa::server {
namespace {

bool LiesIn(const std::string& inner, const std::string& outer) {
  const std::string prefix = outer.ends_with('/') ? outer : outer + "/";
  return inner.starts_with(prefix);
}

}  // namespace

bool Overlap(const std::string& a, const std::string& b) {
  return a == b || LiesIn(a, b) || LiesIn(b, a);
}

OutDirs::Taken OutDirs::Conflict(const std::string& path, const std::string& job_id) const {
  if (path.empty()) return {};  // preflight refuses it
  // Itself and the folders around it.
  for (size_t end = path.size(); end != std::string::npos; end = path.rfind('/', end - 1)) {
    const auto around = by_path_.find(end == 0 ? "/" : path.substr(0, end));
    if (around != by_path_.end() && around->second != job_id) {
      return {around->first, around->second};
    }
    if (end == 0) break;
  }
  // The folders in it: in the order of the map they follow `path/`.
  for (auto inside = by_path_.lower_bound(path == "/" ? path : path + "/");
       inside != by_path_.end() && LiesIn(inside->first, path); ++inside) {
    if (inside->second != job_id) return {inside->first, inside->second};
  }
  return {};
}

}  // namespace nsa::server
