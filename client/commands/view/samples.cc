// nsactl samples: the texts that a job wrote while it trained.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/connect/follow.h"
#include "client/show/document.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct SamplesFlags {
  std::string job;
  int tail = 0;
  bool follow = false;
};

// A heading, then the text as the model wrote it.
std::string SampleText(const v1::SampleRecord& sample) {
  const std::string head =
      absl::StrFormat("step %d, \"%s\" (%d tokens, %.1f s)\n", sample.step(),
                      CleanLine(sample.prompt()), sample.tokens(), sample.seconds());
  const std::string body = sample.error().empty()
                               ? CleanText(sample.text())
                               : absl::StrCat("no text: ", CleanLine(sample.error()));
  return absl::StrCat(head, body, "\n\n");
}

void PrintSample(Session& session, const v1::WatchRecordsResponse& record) {
  if (session.structured()) {
    session.PrintStreamed(record);
  } else {
    session.out() << SampleText(record.record().sample()) << std::flush;
  }
}

absl::StatusOr<ExitCode> Samples(Session& session, const SamplesFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job));
  v1::WatchRecordsRequest request;
  request.set_job(job.id());
  std::vector<v1::WatchRecordsResponse> samples;
  NSA_RETURN_IF_ERROR(client->Stream<v1::WatchRecordsResponse>(
      request, [&](const v1::WatchRecordsResponse& record) {
        request.set_after_position(record.position());
        if (record.record().has_sample()) samples.push_back(record);
        return true;
      }));
  const auto most = static_cast<size_t>(flags.tail);
  if (most > 0 && samples.size() > most) samples.erase(samples.begin(), samples.end() - flags.tail);
  if (session.structured() && !flags.follow) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const v1::WatchRecordsResponse& sample : samples) list.push_back(ToJson(sample));
    session.PrintDocument({{"samples", list}});
    return ExitCode::kOk;
  }
  for (const v1::WatchRecordsResponse& sample : samples) PrintSample(session, sample);
  if (samples.empty() && !session.structured()) {
    session.Note(job.spec().sample().prompts().empty()
                     ? "no samples: the job has no sample.prompts"
                     : "no samples yet: they are written after a validation");
  }
  if (!flags.follow) return ExitCode::kOk;
  request.set_follow(true);
  NSA_RETURN_IF_ERROR(Follow(session, job.id(), [&] {
    return client->Stream<v1::WatchRecordsResponse>(request,
                                                    [&](const v1::WatchRecordsResponse& record) {
                                                      if (record.record().has_sample())
                                                        PrintSample(session, record);
                                                      request.set_after_position(record.position());
                                                      return static_cast<bool>(session.out());
                                                    });
  }));
  return ExitCode::kOk;
}

}  // namespace

void AddSamples(Cli* cli) {
  const auto flags = std::make_shared<SamplesFlags>();
  Options options = cli->Add(
      {.name = "samples",
       .what = "Show the texts that a job writes after every validation (sample in the job file)",
       .group = "Records",
       .more =
           "They are among the records that the coordinator keeps; samples.jsonl in out_dir has "
           "all. -o json prints\none document; with -f one document per line.",
       .examples = "nsactl samples demo\n"
                   "nsactl samples demo -f\n"
                   "nsactl samples demo --tail 2 -o json | jq -r '.samples[].record.sample.text'",
       .run = [flags](Session& session) { return Samples(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Flag("-f,--follow", &flags->follow, "Keep printing until the job has ended");
  options.Number("--tail", &flags->tail, {.least = 0}, "Only the last N texts (default: 0, all)");
}

}  // namespace nsa::client
