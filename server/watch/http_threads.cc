#include "server/watch/http_threads.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/thread_name.h"
#include "server/watch/http_front.h"

namespace nsa::server {
namespace {

constexpr timeval kReaderPatience{.tv_sec = 2, .tv_usec = 500'000};
constexpr size_t kLargestCopy = 16 << 10;

const char* WordsOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// -1: none.
int HexDigit(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (absl::ascii_isdigit(byte)) return c - '0';
  return absl::ascii_isxdigit(byte) ? absl::ascii_tolower(byte) - 'a' + 10 : -1;
}

void ParseQuery(std::string_view text, std::map<std::string, std::string>* query) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    (*query)[DecodePercent(pair.substr(0, equals), true)] =
        DecodePercent(pair.substr(std::min(equals + 1, pair.size())), true);
  }
}

// The first header of a name counts, as in HeaderOf().
void ParseHeaders(std::string_view head, std::map<std::string, std::string>* headers) {
  for (size_t at = head.find('\n'); at != head.npos; at = head.find('\n', at + 1)) {
    const std::string_view line = head.substr(at + 1, head.find('\n', at + 1) - at - 1);
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    const absl::string_view value(line.data() + colon + 1, line.size() - colon - 1);
    headers->emplace(absl::AsciiStrToLower(absl::string_view(line.data(), colon)),
                     std::string(absl::StripAsciiWhitespace(value)));
  }
}

bool HasLeft(const Fd& reader) {
  char byte = 0;
  return recv(reader.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// False when the reader has gone or takes nothing.
bool SendAll(const Fd& to, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void Send(const Fd& to, const HttpReply& reply, bool bodiless) {
  std::string text = HeadOfReply(
      reply.status, reply.type, reply.more == nullptr ? std::ssize(reply.body) : -1, reply.headers);
  // A small body goes with the header in one packet; a large one is not copied.
  const bool apart = reply.body.size() > kLargestCopy;
  if (!bodiless && !apart) text += reply.body;
  if (!SendAll(to, text) || bodiless) return;
  if (apart && !SendAll(to, reply.body)) return;
  if (reply.more == nullptr) return;
  while (const std::optional<std::string> piece = reply.more()) {
    if (!SendAll(to, *piece)) return;
  }
}

}  // namespace

std::string DecodePercent(std::string_view text, bool form) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pair = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
                      HexDigit(text[i + 2]) >= 0;
    if (pair) {
      decoded += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      decoded += form && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::optional<HttpRequest> ParseRequest(std::string_view request) {
  const size_t head_size = EndOfHead(request);
  const std::string_view head = request.substr(0, head_size);
  std::string_view line = head.substr(0, head.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == line.npos || first == 0 || first == last) return std::nullopt;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!target.starts_with('/') || target.find(' ') != target.npos ||
      !line.substr(last + 1).starts_with("HTTP/1.")) {
    return std::nullopt;
  }
  HttpRequest parsed{.method = std::string(line.substr(0, first)),
                     .path = DecodePercent(target.substr(0, target.find('?')), false),
                     .query = {},
                     .headers = {},
                     .body = std::string(request.substr(head_size))};
  for (const char c : parsed.path) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) return std::nullopt;
  }
  const size_t mark = target.find('?');
  if (mark != target.npos) ParseQuery(target.substr(mark + 1), &parsed.query);
  ParseHeaders(head, &parsed.headers);
  return parsed;
}

std::string HeadOfReply(int status, std::string_view type, int64_t length,
                        const std::vector<std::pair<std::string, std::string>>& headers) {
  std::string text = absl::StrCat("HTTP/1.1 ", status, " ", WordsOf(status),
                                  "\r\nContent-Type: ", absl::string_view(type.data(), type.size()),
                                  "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  if (length >= 0) absl::StrAppend(&text, "Content-Length: ", length, "\r\n");
  absl::StrAppend(&text, "Connection: close\r\n\r\n");
  return text;
}

HttpThreads::HttpThreads(int threads, int waiting, HttpHandler handler)
    : most_waiting_(static_cast<size_t>(waiting)), handler_(std::move(handler)) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  } catch (const std::system_error&) {
    Stop();
    throw;
  }
}

HttpThreads::~HttpThreads() { Stop(); }

void HttpThreads::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool HttpThreads::Serve(Fd to, std::string request) {
  setsockopt(to.get(), SOL_SOCKET, SO_SNDTIMEO, &kReaderPatience, sizeof kReaderPatience);
  const MutexLock lock(&mutex_);
  if (waiting_.size() >= most_waiting_) return false;
  waiting_.emplace_back(std::move(to), std::move(request));
  changed_.Signal();
  return true;
}

void HttpThreads::Loop() {
  NameThread("http");
  while (true) {
    std::pair<Fd, std::string> next;
    {
      const MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!HasLeft(next.first)) Answer(next.first, next.second);
  }
}

void HttpThreads::Answer(const Fd& to, std::string_view request) const {
  const std::optional<HttpRequest> parsed = ParseRequest(request);
  if (!parsed.has_value()) {
    SendAll(to, HeadOfReply(400, "text/plain; charset=utf-8", 0));
    return;
  }
  Send(to, handler_(*parsed), parsed->method == "HEAD");
}

}  // namespace nsa::server
