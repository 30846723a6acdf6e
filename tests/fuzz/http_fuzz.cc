// Any bytes on a connection to the HTTP port, and any request to the live page behind it. Without
// an operator's token nothing is changed, and no path leads out of the page's own files.
#include <poll.h>

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/watch/metrics_http.h"
#include "server/web/web.h"
#include "tests/fuzz/world.h"
#include "tests/testing/net/http_get.h"

namespace nsa::fuzz {
namespace {

// A coordinator with its page. It lives as long as the process, because its threads do.
class Page {
 public:
  static Page& Get() {
    static Page* const page = new Page;
    return *page;
  }

  server::HttpReply Answer(const server::HttpRequest& request) { return web_.Answer(request); }
  const std::string& address() const { return (*http_)->address(); }
  void RequireUnchanged() {
    const auto base = world_.life().control->Get("base");
    Require(base.ok() && base->state() == v1::Job::STATE_RUNNING && !base->has_stop(),
            "a stranger changed a job");
  }

 private:
  Page()
      : files_("file-calls", 1, 64),
        web_({.store = *world_.life().store,
              .control = *world_.life().control,
              .fleet = world_.life().fleet,
              .nodes = *world_.life().nodes,
              .board = world_.life().board,
              .logs = world_.life().logs,
              .stacks = world_.life().stacks,
              .dumps = world_.life().dumps,
              .profiles = world_.life().profiles,
              .hub = world_.life().hub,
              .files = files_,
              .clock = world_.clock(),
              .draining = world_.life().draining,
              .check_operator = [](std::string_view) -> absl::StatusOr<std::string> {
                return absl::UnauthenticatedError("nobody");
              },
              .audit = [](const v1::AuditEntry&) {},
              .changed = [] { Require(false, "a stranger changed a job"); },
              .version = [] { return v1::GetVersionResponse(); },
              .warning = [] { return std::string(); },
              .token_file = "token",
              .trace_folder = std::filesystem::temp_directory_path().string()}),
        http_(server::MetricsHttp::Start({.address = "127.0.0.1:0",
                                          .text = [] { return std::string("x 1\n"); },
                                          .problem = [] { return std::string(); },
                                          .pages =
                                              [this](const server::HttpRequest& request) {
                                                server::HttpReply reply = web_.Answer(request);
                                                reply.more =
                                                    nullptr;  // the beginning of a stream is enough
                                                return reply;
                                              },
                                          .page_url = "",
                                          .tls = std::nullopt,
                                          .may_read = nullptr},
                                         clock_)) {
    Require(http_.ok(), http_.status().ToString());
  }

  World world_;
  const RealClock clock_;
  server::Executor files_;
  server::Web web_;
  absl::StatusOr<std::unique_ptr<server::MetricsHttp>> http_;
};

// "METHOD path?query", lines "name: value", an empty line, the body.
server::HttpRequest Parsed(std::string_view text) {
  const size_t end = std::min(text.find("\n\n"), text.size());
  const std::vector<std::string> lines = absl::StrSplit(absl::string_view(text.data(), end), '\n');
  server::HttpRequest request;
  const size_t space = std::min(lines[0].find(' '), lines[0].size());
  request.method = lines[0].substr(0, space);
  const std::string target = space < lines[0].size() ? lines[0].substr(space + 1) : "";
  const size_t mark = std::min(target.find('?'), target.size());
  request.path = "/" + target.substr(0, mark);
  for (const absl::string_view pair : absl::StrSplit(absl::string_view(target).substr(mark), '&')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    request.query[parts.first] = parts.second;
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    request.headers[parts.first] = parts.second;
  }
  if (end + 2 <= text.size()) request.body = text.substr(end + 2);
  return request;
}

// Sends raw bytes and reads what comes back, until the server closes or says no more.
std::string Send(const std::string& bytes) {
  const Fd fd = HttpSend(Page::Get().address(), bytes);
  if (!fd.valid()) return "";
  // Closing resets the connection, so that no port stays behind.
  const linger none{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  shutdown(fd.get(), SHUT_WR);
  std::string answer;
  char buffer[65536];
  pollfd readable{.fd = fd.get(), .events = POLLIN, .revents = 0};
  while (poll(&readable, 1, 50) > 0) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

}  // namespace
}  // namespace nsa::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa::fuzz;
  Input input(data, size);
  const bool raw = input.Byte() % 4 == 0;
  if (raw) {
    const std::string answer = Send(std::string(input.Rest()));
    Require(answer.empty() || answer.rfind("HTTP/1.1 ", 0) == 0, "an answer that is no HTTP");
  } else {
    const nsa::server::HttpReply reply = Page::Get().Answer(Parsed(input.Rest()));
    Require(reply.status >= 200 && reply.status < 600 && reply.status != 500,
            "status " + std::to_string(reply.status));
    for (const auto& [name, value] : reply.headers) {
      Require(value.find_first_of("\r\n") == std::string::npos, "a header of two lines");
    }
  }
  Page::Get().RequireUnchanged();
  return 0;
}
