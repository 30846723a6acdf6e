#include "client/connect/endpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/environment.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/base/why_unreadable.h"
#include "common/base/write.h"
#include "common/job/load.h"
#include "common/rpc/rpc.h"

namespace nsa::client {
namespace {

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    return absl::UnauthenticatedError(
        absl::StrCat("token file: ", path, " cannot be read (", WhyUnreadable(path, errno),
                     "); correct the path, or the file's owner and mode"));
  }
  return std::string(absl::StripAsciiWhitespace(content.str()));
}

absl::Status ApplyContext(const v1::ClientContext& context, Endpoint* endpoint) {
  endpoint->tls = context.tls();
  if (!context.token_file().empty()) {
    NSA_ASSIGN_OR_RETURN(endpoint->token, ReadToken(context.token_file()));
  }
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(Endpoint* endpoint) {
  if (const auto v = Environment("NSACTL_TLS_CA_FILE"); !v.empty()) {
    endpoint->tls.set_client_ca_file(v);
  }
  if (const auto v = Environment("NSACTL_TLS_CERTIFICATE_FILE"); !v.empty()) {
    endpoint->tls.set_certificate_file(v);
  }
  if (const auto v = Environment("NSACTL_TLS_PRIVATE_KEY_FILE"); !v.empty()) {
    endpoint->tls.set_private_key_file(v);
  }
  if (const auto v = Environment("NSACTL_TOKEN"); !v.empty()) {
    endpoint->token = v;
  } else if (const auto file = Environment("NSACTL_TOKEN_FILE"); !file.empty()) {
    NSA_ASSIGN_OR_RETURN(endpoint->token, ReadToken(file));
  }
  return absl::OkStatus();
}

// The name of the context to use, and what named it. --context takes precedence over
// NSACTL_ADDRESS.
struct Choice {
  std::string name;
  std::string named_by;
};

Choice ChooseContext(const std::string& flag, const v1::ClientConfig& config) {
  if (!flag.empty()) return {flag, "--context"};
  if (const auto v = Environment("NSACTL_CONTEXT"); !v.empty()) return {v, "NSACTL_CONTEXT"};
  return {config.current(), "current"};
}

}  // namespace

std::string NormalAddress(const std::string& address) {
  if (absl::StartsWith(address, "/") || absl::StartsWith(address, "./")) return "unix:" + address;
  return address;
}

std::filesystem::path ClientConfigPath() {
  if (const auto v = Environment("NSACTL_CONFIG"); !v.empty()) return v;
  if (const auto v = Environment("XDG_CONFIG_HOME"); !v.empty()) return v + "/nsa/config.yaml";
  return Environment("HOME") + "/.config/nsa/config.yaml";
}

absl::StatusOr<v1::ClientConfig> ReadClientConfig(const std::filesystem::path& path) {
  v1::ClientConfig config;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return config;
  const auto loaded = LoadYamlFile(path, &config);
  if (!loaded.ok()) {
    if (absl::IsInvalidArgument(loaded.status())) return loaded.status();
    return absl::InvalidArgumentError(loaded.status().message());
  }
  std::set<std::string> names;
  for (const v1::ClientContext& context : config.contexts()) {
    if (context.name().empty() || !names.insert(context.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.string(), ": contexts: name '", context.name(),
                       "' is empty or used twice; give each context its own name"));
    }
  }
  return config;
}

absl::Status WriteClientConfig(const std::filesystem::path& path, const v1::ClientConfig& config) {
  std::error_code error;
  // Where a link leads, which stays one.
  std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) real = path;
  std::filesystem::create_directories(real.parent_path(), error);
  const std::string temporary = absl::StrCat(real.string(), ".tmp-", getpid());
  const std::string text = ToYaml(config);
  const Fd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written = file.valid() && WriteAll(file.get(), text) && fsync(file.get()) == 0 &&
                       rename(temporary.c_str(), real.c_str()) == 0;
  if (written) return absl::OkStatus();
  const int write_errno = errno;
  unlink(temporary.c_str());
  return absl::InternalError(absl::StrCat(path.string(), ": cannot be written (",
                                          std::strerror(write_errno),
                                          "); set NSACTL_CONFIG to a file that can"));
}

const v1::ClientContext* FindContext(const v1::ClientConfig& config, const std::string& name) {
  for (const v1::ClientContext& context : config.contexts()) {
    if (context.name() == name) return &context;
  }
  return nullptr;
}

absl::StatusOr<Endpoint> ResolveEndpoint(const std::string& address_flag,
                                         const std::string& context_flag) {
  NSA_ASSIGN_OR_RETURN(const v1::ClientConfig config, ReadClientConfig(ClientConfigPath()));
  const Choice choice = ChooseContext(context_flag, config);
  const bool context_is_a_flag = !context_flag.empty();
  const std::string address_variable = Environment("NSACTL_ADDRESS");
  const v1::ClientContext* context = nullptr;
  if (!choice.name.empty()) {
    context = FindContext(config, choice.name);
    if (context == nullptr && choice.named_by != "current") {
      return absl::NotFoundError(
          absl::StrCat("context: '", choice.name, "' (from ", choice.named_by, ") is not in ",
                       ClientConfigPath().string(), "; see `nsactl context list`"));
    }
    // An address says which coordinator, whatever is current.
    if (context == nullptr && address_flag.empty() && address_variable.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(ClientConfigPath().string(), ": current: '", choice.name,
                       "' is not one of the contexts; choose one with `nsactl context use NAME`"));
    }
  }
  Endpoint endpoint;
  if (!address_flag.empty()) {
    endpoint.address = NormalAddress(address_flag);
    endpoint.source = "--address";
  } else if (!address_variable.empty() && !context_is_a_flag) {
    endpoint.address = NormalAddress(address_variable);
    endpoint.source = "NSACTL_ADDRESS";
  } else if (context != nullptr && !context->address().empty()) {
    endpoint.address = NormalAddress(context->address());
    endpoint.source = absl::StrCat("context ", context->name());
  } else {
    endpoint.address = absl::StrCat("unix:", DefaultStateDir(), "/coordinator.sock");
    endpoint.source = "default";
  }
  // A context's token is sent only to its own address, unless a flag names the context.
  const bool ours = context != nullptr &&
                    (context_is_a_flag || endpoint.address == NormalAddress(context->address()));
  if (ours) NSA_RETURN_IF_ERROR(ApplyContext(*context, &endpoint));
  NSA_RETURN_IF_ERROR(ApplyEnvironment(&endpoint));
  if (endpoint.token.empty()) endpoint.token = LocalToken(endpoint.address);
  return endpoint;
}

}  // namespace nsa::client
