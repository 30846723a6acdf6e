#include "worker/train/telemetry/environment.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/environment.h"
#include "common/base/utc_text.h"
#include "common/base/version.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

using Json = nlohmann::ordered_json;

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

Json Variables() {
  Json variables = Json::object();
  for (const char* prefix : {"NSA_", "OMP_", "OPENBLAS_", "CUDA_", "NCCL_"}) {
    for (const auto& [name, value] : VariablesWith(prefix)) {
      const bool secret = std::ranges::any_of(
          std::array{"TOKEN", "SECRET", "KEY", "PASSWORD"},
          [&name = name](const char* word) { return name.find(word) != std::string::npos; });
      variables[name] = secret ? "(not shown)" : value;
    }
  }
  return variables;
}

Json Replaced(const std::vector<ReplacedVariable>& variables) {
  Json replaced = Json::object();
  for (const ReplacedVariable& variable : variables) {
    Json& entry = replaced[variable.name] = {{"given", variable.given}, {"used", nullptr}};
    if (variable.used.has_value()) entry["used"] = *variable.used;
  }
  return replaced;
}

// The CUDA driver's library that this process has loaded; null without one. It shows whether it is
// that of the driver or that of the forward-compatibility package.
Json CudaLibrary() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find("/libcuda.so", path) != std::string::npos) {
      return line.substr(path);
    }
  }
  return nullptr;
}

Json SpecJson(const v1::JobSpec& spec) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(spec, &text, options).ok()) return nullptr;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string EnvironmentJson(const ReporterOptions& options) {
  utsname system{};
  uname(&system);
  struct sysinfo memory {};
  sysinfo(&memory);
  const int64_t bytes = static_cast<int64_t>(memory.totalram) * memory.mem_unit;
  const Json json = {{"time", UtcText(absl::GetCurrentTimeNanos())},
                     {"version", std::string(kVersion)},
                     {"revision", std::string(kRevision)},
                     {"compiler", __VERSION__},
                     {"host", system.nodename},
                     {"kernel", system.release},
                     {"processor", ProcessorName()},
                     {"cores", std::thread::hardware_concurrency()},
                     {"memory_bytes", bytes},
                     {"memory_mib", bytes / (1 << 20)},
                     {"memory_gib", static_cast<double>(bytes) / (1 << 30)},
                     {"device", options.device},
                     {"cuda_library", CudaLibrary()},
                     {"pid", getpid()},
                     {"job_id", options.job_id},
                     {"generation", options.generation},
                     {"world_size", options.world_size},
                     {"resumed_step", options.resumed_step},
                     {"environment", Variables()},
                     {"nccl_replaced", Replaced(options.nccl_replaced)},
                     {"spec", SpecJson(options.spec)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace nsa::train
