#include "server/web/web.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/job/data/url.h"
#include "server/web/assets.h"
#include "server/web/logs.h"
#include "server/web/quantities.h"
#include "server/web/selection.h"
#include "server/web/steer.h"
#include "server/web/stream.h"
#include "server/web/trace_shelf.h"
#include "server/web/traces.h"
#include "server/web/view_cache.h"
#include "server/web/views.h"

namespace nsa::server {
namespace {

constexpr char kApi[] = "/api/v1/";
constexpr char kText[] = "text/plain; charset=utf-8";
// Nothing from elsewhere, nothing inline, no frame around it. Charts set sizes by style properties,
// which needs no exception.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return 503;
    default:
      return 500;
  }
}

HttpReply TextReply(absl::StatusOr<std::string> json) {
  if (json.ok()) return {.body = *std::move(json), .headers = {{"Cache-Control", "no-store"}}};
  return {.status = HttpStatus(json.status()),
          .body = Text(Json{{"error", std::string(json.status().message())}}),
          .headers = {{"Cache-Control", "no-store"}}};
}

HttpReply ReplyOf(const absl::StatusOr<Json>& json) {
  return TextReply(json.ok() ? absl::StatusOr<std::string>(Text(*json)) : json.status());
}

bool AreOneOrigin(const std::string& one, const std::string& other) {
  const auto first = ParseUrl(one), second = ParseUrl(other);
  return first.ok() && second.ok() && first->origin() == second->origin();
}

// A page of another site can make a browser send requests to this port. It cannot read the answer,
// and here it does not get one. Programs other than browsers send neither header.
//
// A proxy at `page_url` may send the address that it reaches as Host; the Origin is its own then.
absl::Status CheckSite(const HttpRequest& request, const std::string& page_url) {
  const std::string site = request.Header("sec-fetch-site");
  const std::string origin = request.Header("origin");
  const bool same_site = site.empty() || site == "same-origin" || site == "none";
  const std::string host = request.Header("host");
  const bool same_origin = origin.empty() || origin == absl::StrCat("http://", host) ||
                           origin == absl::StrCat("https://", host) ||
                           AreOneOrigin(origin, page_url);
  if (same_site && same_origin) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "the request comes from a page of another site; open this coordinator's own page");
}

// The name of a change in the audit log: the method of CoordinatorService, where there is one.
std::string AuditWord(const std::string& verb) {
  if (verb == "stop") return "StopJob";
  if (verb == "resume") return "ResumeJob";
  if (verb == "stacks") return "SaveStacks";
  if (verb == "profile") return "ProfileJob";
  if (verb == "note" || verb == "label" || verb == "mute") return "EditJob";
  if (verb == "clone") return "SubmitJob";
  return verb == "pin" ? "PinCheckpoint" : "unknown";
}

// Compresses a long reply for a client that takes that. A stream and a file of its own encoding
// stay.
void Compress(const HttpRequest& request, HttpReply* reply) {
  constexpr size_t kLong = 4 << 10;
  if (reply->more != nullptr || reply->body.size() < kLong) return;
  for (const auto& [name, value] : reply->headers) {
    if (absl::EqualsIgnoreCase(name, "Content-Encoding")) return;
  }
  reply->headers.emplace_back("Vary", "Accept-Encoding");
  if (!absl::StrContains(request.Header("accept-encoding"), "gzip")) return;
  std::string gzip = Deflate(reply->body);
  if (gzip.empty() || gzip.size() >= reply->body.size()) return;
  reply->body = std::move(gzip);
  reply->headers.emplace_back("Content-Encoding", "gzip");
}

Web::Parts WithPlaces(Web::Parts parts) {
  parts.places = std::make_shared<PlaceCache>();
  parts.views = std::make_shared<ViewCache>(parts.control, &parts.hub, parts.clock);
  return parts;
}

}  // namespace

Web::Web(Parts parts)
    : parts_(WithPlaces(std::move(parts))),
      sparks_(std::make_unique<SparkCache>(parts_.store, parts_.clock)),
      traces_(std::make_unique<TraceShelf>()),
      streams_(std::make_shared<std::atomic<int>>(0)) {}

Web::~Web() = default;

HttpReply Web::Answer(const HttpRequest& request) {
  const bool api = absl::StartsWith(request.path, kApi);
  HttpReply reply = api ? Api(request) : File(request);
  if (api) Compress(request, &reply);
  reply.headers.emplace_back("Content-Security-Policy", kPolicy);
  reply.headers.emplace_back("Referrer-Policy", "no-referrer");
  reply.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  return reply;
}

void Web::Forget(const std::string& job_id) {
  sparks_->Forget(job_id);
  parts_.places->Forget(job_id);
  parts_.views->Forget(job_id);
  traces_->Forget(job_id);
}

HttpReply Web::File(const HttpRequest& request) const {
  // Browsers ask for this path where a document names no icon, as plain text does.
  const std::optional<Asset> asset =
      FindAsset(request.path == "/favicon.ico" ? "/icon.svg" : request.path);
  if (!asset.has_value() || (request.method != "GET" && request.method != "HEAD")) {
    return {.status = asset.has_value() ? 405 : 404, .type = kText, .body = "not found\n"};
  }
  HttpReply reply{.type = std::string(asset->type), .body = {}};
  // The browser asks each time whether its copy of index.html is current, so a new version is seen
  // at once; what that names it need not ask for again.
  reply.headers = {{"ETag", std::string(asset->etag)},
                   {"Cache-Control", asset->lasting ? "max-age=31536000, immutable" : "no-cache"},
                   {"Vary", "Accept-Encoding"}};
  if (request.Header("if-none-match") == asset->etag) {
    reply.status = 304;
    return reply;
  }
  if (absl::StrContains(request.Header("accept-encoding"), "gzip")) {
    reply.headers.emplace_back("Content-Encoding", "gzip");
    reply.body = std::string(asset->gzip);
  } else {
    reply.body = Inflate(asset->gzip);
  }
  return reply;
}

HttpReply Web::Change(const HttpRequest& request, const std::string& job, const std::string& verb) {
  const auto who = parts_.check_operator(request.Header("authorization"));
  absl::Status status = who.status();
  HttpReply reply;
  if (who.ok() && verb == "profile") {
    auto recording = RecordTrace(parts_, traces_.get(), job, request.body, *who);
    status = recording.status();
    if (recording.ok()) reply = *std::move(recording);
  } else if (who.ok()) {
    const absl::StatusOr<Json> changed = Steer(parts_, job, verb, request.body, *who);
    status = changed.status();
    if (changed.ok()) reply = ReplyOf(changed);
  }
  v1::AuditEntry entry;
  entry.set_who(who.value_or(""));
  entry.set_from("live page");
  entry.set_what(AuditWord(verb));
  entry.set_subject(job);
  entry.set_result(absl::StatusCodeToString(status.code()));
  parts_.audit(entry);
  return status.ok() ? reply : ReplyOf(status);
}

// A trace shows what a job is made of: only an operator may have it.
HttpReply Web::Trace(const HttpRequest& request, const std::string& job, const std::string& id) {
  const auto who = parts_.check_operator(request.Header("authorization"));
  if (!who.ok()) return ReplyOf(who.status());
  auto file = TraceFile(parts_, *traces_, job, id);
  return file.ok() ? *std::move(file) : ReplyOf(file.status());
}

HttpReply Web::Api(const HttpRequest& request) {
  if (const absl::Status site = CheckSite(request, parts_.page_url); !site.ok())
    return ReplyOf(site);
  // "", "api", "v1", then what is asked for.
  const std::vector<std::string> path = absl::StrSplit(request.path, '/');
  const std::string& what = path[3];
  const std::string job = path.size() > 4 ? path[4] : "";
  const std::string part = path.size() > 5 ? path[5] : "";
  if (request.method == "POST") {
    if (what == "jobs" && !part.empty() && parts_.draining) {
      return ReplyOf(absl::UnavailableError("the coordinator is ending; try again in a moment"));
    }
    if (what == "jobs" && !part.empty()) return Change(request, job, part);
    const auto who = parts_.check_operator(request.Header("authorization"));
    if (!who.ok()) return ReplyOf(who.status());
    if (what == "token") return ReplyOf(Json::object());
    return ReplyOf(absl::NotFoundError("nothing to change here"));
  }
  if (request.method != "GET") return {.status = 405, .body = "{}"};
  if (what == "fleet") return ReplyOf(FleetView(parts_, request, sparks_.get()));
  if (what == "quantities") return ReplyOf(QuantitiesJson());
  if (what == "stream") return StreamReply(parts_, request, streams_);
  if (what == "jobs" && !job.empty()) {
    if (part.empty()) return ReplyOf(JobView(parts_, job));
    if (part == "curves") return TextReply(CurvesView(parts_, job, request));
    if (part == "layers") return ReplyOf(LayersView(parts_, job, request));
    if (part == "gpus") return TextReply(GpusView(parts_, job, request));
    if (part == "samples") return ReplyOf(SamplesView(parts_, job, request));
    if (part == "events") return ReplyOf(EventsView(parts_, job));
    if (part == "log" && request.Query("file").empty()) {
      return ReplyOf(LogView(parts_, job, request));
    }
    if (part == "log") {
      auto file = LogFile(parts_, job, request, streams_);
      return file.ok() ? *std::move(file) : ReplyOf(file.status());
    }
    if (part == "checkpoints") return ReplyOf(CheckpointsView(parts_, job));
    if (part == "stacks" && path.size() == 6) return ReplyOf(StacksView(parts_, job));
    if (part == "traces" && path.size() == 6) return ReplyOf(TracesView(parts_, *traces_, job));
    if (part == "traces") return Trace(request, job, path[6]);
    int64_t id = 0;
    if (part == "stacks" && absl::SimpleAtoi(path[6], &id)) {
      const auto text = StackText(parts_, job, id);
      if (!text.ok()) return ReplyOf(text.status());
      return {.type = kText, .body = *text, .headers = {{"Cache-Control", "no-store"}}};
    }
  }
  return ReplyOf(absl::NotFoundError(absl::StrCat("no such path: ", request.path)));
}

}  // namespace nsa::server
