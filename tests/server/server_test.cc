// Jobs over gRPC: submit, watch, records, logs, dumps, a restart and a drain in the middle.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "server/act/job_control.h"
#include "tests/server/rpc/followers.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/heap.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ServerTest, AWatcherSeesAJobFromSubmitToItsEnd) {
  KeepBeating(2, 3);
  const std::string id = Submit(Spec("demo", 2));
  std::vector<std::string> states;
  const Job job = Follow(id, &states);
  EXPECT_EQ(StateName(job.state()), "SUCCEEDED");
  EXPECT_EQ(job.progress().step(), 20);
  EXPECT_EQ(states.back(), "SUCCEEDED");
  const auto records = Records(id, 1);
  ASSERT_EQ(records.size(), 22u) << "started, twenty steps, finished";
  EXPECT_EQ(records.back().record().finished().reason(), "COMPLETED");
}

TEST_F(ServerTest, EveryAnswerWarnsWhileTheStoreFails) {
  const auto warning = [this] {
    const auto context = MakeContext(kTimeout, "");
    v1::ListJobsResponse jobs;
    EXPECT_TRUE(people_->ListJobs(context.get(), {}, &jobs).ok());
    return WarningOf(*context);
  };
  Submit(Spec("before"));
  EXPECT_EQ(warning(), "");
  {
    const FileSizeLimit full(1);
    EXPECT_FALSE(TrySubmit(Spec("refused")).ok());
    EXPECT_THAT(warning(), AllOf(HasSubstr((folder_ / "state").string()), HasSubstr("has failed"),
                                 HasSubstr("stored last")));
  }
  Submit(Spec("after"));
  EXPECT_EQ(warning(), "");
}

TEST_F(ServerTest, AReaderContinuesWhereItStopped) {
  KeepBeating(2, 3);
  const std::string id = Submit(Spec("demo", 2));
  Follow(id);
  const auto first = Records(id, -1, 0, 9);
  ASSERT_EQ(first.size(), 9u);
  const auto rest = Records(id, -1, first.back().position());
  EXPECT_EQ(first.size() + rest.size(), 44u);
  for (const auto& record : rest) EXPECT_GT(record.position(), first.back().position());
}

TEST_F(ServerTest, ARestartInTheMiddleOfAJobLosesAndDoublesNothing) {
  v1::JobSpec spec = Spec("demo", 2);
  spec.mutable_train()->set_steps(300);
  const std::string id = Submit(spec);
  KeepBeating(2, 4);
  while (Get(id).progress().step() < 40) absl::SleepFor(absl::Milliseconds(5));
  for (int i = 0; i < 3; ++i) {
    Restart();
    absl::SleepFor(absl::Milliseconds(60));
  }
  const Job job = Follow(id);
  EXPECT_EQ(StateName(job.state()), "SUCCEEDED");
  EXPECT_EQ(job.restarts(), 0);
  for (const int32_t rank : {0, 1}) {
    const auto records = Records(id, rank);
    ASSERT_EQ(records.size(), 302u);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].record().sequence(), static_cast<int64_t>(i + 1));
    }
  }
}

TEST_F(ServerTest, OneRequestSentAThousandTimesFromTwentyClientsIsOneJob) {
  std::vector<std::thread> clients;
  std::atomic<int> failures = 0;
  for (int c = 0; c < 20; ++c) {
    clients.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto response = TrySubmit(Spec("demo"), "0b0e-the-same");
        if (!response.ok()) ++failures;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failures, 0);
  const auto jobs = Call<v1::ListJobsResponse>(&v1::CoordinatorService::Stub::ListJobs,
                                               people_.get(), v1::ListJobsRequest());
  EXPECT_EQ(jobs->jobs_size(), 1);
}

TEST_F(ServerTest, ARequestIdWithAnotherSpecIsRefused) {
  ASSERT_TRUE(TrySubmit(Spec("demo"), "r").ok());
  grpc::Status wire;
  EXPECT_THAT(TrySubmit(Spec("other"), "r", &wire).status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(ServerTest, ARefusedJobComesBackWithItsViolations) {
  v1::JobSpec spec = Spec("bad");
  spec.mutable_nsa()->set_d(5);
  grpc::Status wire;
  EXPECT_THAT(TrySubmit(spec, "", &wire).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  const ErrorDetails details = DetailsOf(wire);
  EXPECT_EQ(details.reason, "PREFLIGHT_REFUSED");
  ASSERT_FALSE(details.violations.empty());
  EXPECT_THAT(details.violations[0].field, HasSubstr("nsa."));

  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  const auto validated =
      Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(), request);
  ASSERT_TRUE(validated.ok()) << validated.status();
  EXPECT_FALSE(validated->report().accepted());
  EXPECT_FALSE(validated->has_job());
}

TEST_F(ServerTest, AnEndedJobIsDeletedWithAllThatIsKeptOfIt) {
  const auto remove = [&](const std::string& job, const std::string& request_id,
                          grpc::Status* wire = nullptr) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    request.set_request_id(request_id);
    return Call<v1::DeleteJobResponse>(&v1::CoordinatorService::Stub::DeleteJob, people_.get(),
                                       request, wire);
  };
  const std::string id = Submit(Spec("demo"));
  grpc::Status wire;
  EXPECT_THAT(remove(id, "early", &wire).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nsactl stop " + id)));
  EXPECT_EQ(DetailsOf(wire).reason, "JOB_HAS_NOT_ENDED");
  EXPECT_THAT(remove("nobody", "").status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(remove(id, std::string(200, 'r')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request_id")));
  KeepBeating(2, 3);
  EXPECT_EQ(Follow(id).state(), Job::STATE_SUCCEEDED);
  v1::ReportLogRequest log;
  log.set_job_id(id);
  log.set_generation(1);
  log.set_data("a line\n");
  const auto report = [&] {
    return Call<v1::ReportLogResponse>(&v1::FleetService::Stub::ReportLog, agents_.get(), log)
        .status();
  };
  ASSERT_OK(report());
  ASSERT_TRUE(std::filesystem::exists(folder_ / "state/logs" / id));

  for (int i = 0; i < 3; ++i) {
    const auto deleted = remove("demo", "r");
    ASSERT_OK(deleted.status());
    EXPECT_EQ(deleted->job_id(), id);
    if (i == 1) Restart();
  }
  v1::GetJobRequest get;
  get.set_job(id);
  EXPECT_THAT(
      Call<v1::GetJobResponse>(&v1::CoordinatorService::Stub::GetJob, people_.get(), get).status(),
      StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(report(), StatusIs(absl::StatusCode::kNotFound)) << "an agent then gives up";
  const absl::Duration give_up = RealClock().Monotonic() + absl::Seconds(60);
  while (std::filesystem::exists(folder_ / "state/logs" / id) &&
         RealClock().Monotonic() < give_up) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "state/logs" / id));

  v1::JobSpec again = Spec("demo");
  again.mutable_train()->set_out_dir((folder_ / "out" / "again").string());
  const std::string next = Submit(again);
  EXPECT_NE(next, id);
  EXPECT_EQ(Get("demo").id(), next);
}

TEST(DeletionText, NamesTheJobOnOneLineWhateverItIsCalled) {
  v1::Job job;
  job.set_name("a\nb");
  job.set_state(v1::Job::STATE_FAILED);
  job.mutable_progress()->set_step(7);
  job.mutable_spec()->mutable_train()->set_steps(20);
  job.mutable_spec()->mutable_train()->set_out_dir("/data/a");
  const std::string text = DeletionText(job);
  EXPECT_THAT(text, HasSubstr("name a\\nb, failed at step 7 of 20"));
  EXPECT_THAT(text, HasSubstr("/data/a stays"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(ServerTest, TwoJobsDoNotShareAnOutDir) {
  ASSERT_TRUE(TrySubmit(Spec("demo")).ok());
  v1::JobSpec second = Spec("demo");
  second.set_name("second");
  grpc::Status wire;
  EXPECT_THAT(TrySubmit(second, "", &wire).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("train.out_dir")));
  const ErrorDetails details = DetailsOf(wire);
  EXPECT_EQ(details.reason, "OUT_DIR_IN_USE");
  ASSERT_EQ(details.violations.size(), 1u);
  EXPECT_EQ(details.violations[0].field, "train.out_dir");
}

TEST_F(ServerTest, ANumberedOutDirIsANewFolderForEachSubmit) {
  v1::JobSpec spec = Spec("demo");
  const std::string parent =
      std::filesystem::path(spec.train().out_dir()).parent_path().string() + "/";
  std::filesystem::create_directories(parent + "demo-2");
  spec.mutable_train()->set_out_dir(parent + "{name}-{n}");
  for (const char* folder : {"demo-1", "demo-3", "demo-4"}) {
    const auto accepted = TrySubmit(spec);
    ASSERT_OK(accepted);
    EXPECT_EQ(accepted->job().spec().train().out_dir(), parent + folder);
  }
}

TEST_F(ServerTest, TheListOfMachinesSaysWhetherTheCoordinatorStartsAnAgent) {
  const auto starts_one = [this] {
    return Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes, people_.get(),
                                       v1::ListNodesRequest())
        ->local_agent();
  };
  EXPECT_FALSE(starts_one());
  local_agent_ = true;
  Restart();
  EXPECT_TRUE(starts_one());
}

TEST_F(ServerTest, JobsAreListedByLabel) {
  v1::JobSpec labelled = Spec("labelled");
  (*labelled.mutable_labels())["team"] = "vision";
  const std::string id = Submit(labelled);
  Submit(Spec("plain"));
  v1::ListJobsRequest request;
  (*request.mutable_labels())["team"] = "vision";
  const auto jobs =
      Call<v1::ListJobsResponse>(&v1::CoordinatorService::Stub::ListJobs, people_.get(), request);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->jobs_size(), 1);
  EXPECT_EQ(jobs->jobs(0).id(), id);
}

TEST_F(ServerTest, ADumpOfARunningJobArrives) {
  KeepBeating(2, 0);
  const std::string id = Submit(Spec("demo", 2));
  while (Get(id).state() != Job::STATE_RUNNING) absl::SleepFor(absl::Milliseconds(5));
  v1::DumpStackRequest request;
  request.set_job(id);
  request.set_rank(-1);
  const auto dump =
      Call<v1::DumpStackResponse>(&v1::CoordinatorService::Stub::DumpStack, people_.get(), request);
  ASSERT_TRUE(dump.ok()) << dump.status();
  ASSERT_EQ(dump->dumps_size(), 2);
  EXPECT_EQ(dump->dumps(1).rank(), 1);
  EXPECT_EQ(dump->dumps(1).stacks(), "#0 main\n");
  EXPECT_EQ(dump->dumps(1).error(), "");
}

TEST_F(ServerTest, AJobWithoutProcessesHasNothingToDump) {
  const std::string id = Submit(Spec("demo"));
  v1::DumpStackRequest request;
  request.set_job(id);
  EXPECT_THAT(
      Call<v1::DumpStackResponse>(&v1::CoordinatorService::Stub::DumpStack, people_.get(), request)
          .status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is waiting")));
}

TEST_F(ServerTest, ARankThatIsNotThereIsNotFound) {
  const std::string one = Submit(Spec("one"));
  v1::JobSpec pair = Spec("pair", 2);
  const std::string two = Submit(pair);
  const auto texts = [&](const std::string& job, int rank) {
    std::vector<std::string> found;
    const auto note = [&found](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
      found.emplace_back(status.message());
    };
    v1::StreamLogsRequest logs;
    logs.set_job(job);
    logs.set_rank(rank);
    v1::StreamLogsResponse line;
    const auto logs_context = MakeContext(kTimeout, "");
    const auto log_reader = people_->StreamLogs(logs_context.get(), logs);
    EXPECT_FALSE(log_reader->Read(&line));
    note(FromGrpc(log_reader->Finish()));
    v1::WatchRecordsRequest records;
    records.set_job(job);
    records.set_rank(rank);
    v1::WatchRecordsResponse record;
    const auto records_context = MakeContext(kTimeout, "");
    const auto record_reader = people_->WatchRecords(records_context.get(), records);
    EXPECT_FALSE(record_reader->Read(&record));
    note(FromGrpc(record_reader->Finish()));
    v1::DumpStackRequest dump;
    dump.set_job(job);
    dump.set_rank(rank);
    note(Call<v1::DumpStackResponse>(&v1::CoordinatorService::Stub::DumpStack, people_.get(), dump)
             .status());
    return found;
  };
  EXPECT_THAT(texts(one, 1), testing::Each(HasSubstr("rank: 1 (job " + one + " has rank 0 only)")));
  EXPECT_THAT(texts(two, 5), testing::Each(HasSubstr("rank: 5 (job " + two + " has 0 to 1)")));
}

TEST_F(ServerTest, LogsAreFollowedAndContinuedByToken) {
  KeepBeating(1, 0);
  const std::string id = Submit(Spec("demo"));
  while (Get(id).state() != Job::STATE_RUNNING) absl::SleepFor(absl::Milliseconds(5));
  v1::ReportLogRequest report;
  report.set_job_id(id);
  report.set_generation(1);
  report.set_data("one\ntwo\nthr");
  const auto send = [&] {
    const auto sent =
        Call<v1::ReportLogResponse>(&v1::FleetService::Stub::ReportLog, agents_.get(), report);
    EXPECT_TRUE(sent.ok()) << sent.status();
    return sent.ok() ? sent->next_offset() : -1;
  };
  ASSERT_EQ(send(), 11);
  const auto context = MakeContext(kTimeout, "");
  v1::StreamLogsRequest request;
  request.set_job(id);
  request.set_follow(true);
  const auto reader = people_->StreamLogs(context.get(), request);
  v1::StreamLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.data(), "one\ntwo\n");
  const std::string token = response.resume_token();
  report.set_offset(11);
  report.set_data("ee\n");
  ASSERT_EQ(send(), 14);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.data(), "three\n");
  context->TryCancel();

  request.set_follow(false);
  request.set_resume_token(token);
  const auto again = MakeContext(kTimeout, "");
  const auto continued = people_->StreamLogs(again.get(), request);
  ASSERT_TRUE(continued->Read(&response));
  EXPECT_EQ(response.data(), "three\n");
  EXPECT_FALSE(continued->Read(&response));
  EXPECT_TRUE(continued->Finish().ok());
  request.set_resume_token("nonsense");
  const auto bad = MakeContext(kTimeout, "");
  const auto refused = people_->StreamLogs(bad.get(), request);
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_EQ(refused->Finish().error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(ServerTest, ReadersThatDoNotReadCostLittleMemoryAndNobodyElseTime) {
  KeepBeating(1, 0);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_train()->set_steps(1'000'000);
  WaiveLength(&spec);
  const std::string id = Submit(spec);
  while (Get(id).state() != Job::STATE_RUNNING) absl::SleepFor(absl::Milliseconds(5));
  StopBeating();
  // About 40 MB of records.
  v1::ReportRecordsRequest request;
  request.set_job_id(id);
  request.set_generation(1);
  int64_t sequence = 1;
  for (int batch = 0; batch < 20; ++batch) {
    request.clear_records();
    for (int i = 0; i < 500; ++i) {
      v1::WorkerRecord* record = request.add_records();
      record->set_sequence(++sequence);
      record->mutable_step()->set_step(sequence);
      (*record->mutable_step()->mutable_fallbacks())[std::string(4'000, 'x')] = 1;
    }
    ASSERT_TRUE(Call<v1::ReportRecordsResponse>(&v1::FleetService::Stub::ReportRecords,
                                                agents_.get(), request)
                    .ok());
  }
  const auto twenty_calls = [&] {
    const absl::Duration start = RealClock().Monotonic();
    for (int i = 0; i < 20; ++i) Get(id);
    return RealClock().Monotonic() - start;
  };
  const absl::Duration alone = twenty_calls();
  const int64_t before = HeapInUse();
  constexpr int kReaders = 30;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchRecordsResponse>>> readers;
  std::vector<std::unique_ptr<v1::CoordinatorService::Stub>> stubs;
  for (int i = 0; i < kReaders; ++i) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::CoordinatorService::NewStub(grpc::CreateCustomChannel(
        server_->listen_address(), grpc::InsecureChannelCredentials(), own)));
    contexts.push_back(MakeContext(kTimeout, Token()));
    v1::WatchRecordsRequest watch;
    watch.set_job(id);
    watch.set_rank(-1);
    watch.set_follow(true);
    readers.push_back(stubs.back()->WatchRecords(contexts.back().get(), watch));
  }
  absl::SleepFor(absl::Seconds(1));
  const int64_t grown = HeapInUse() - before;
  // The number includes the client, which is in the same process.
  EXPECT_LT(grown / kReaders, 8 << 20);
  RecordProperty("heap_per_reader", grown / kReaders);
  EXPECT_LT(twenty_calls(), std::max(absl::Seconds(2), 5 * alone));
  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) reader->Finish();
}

// Reads a stream to its end and returns its status.
template <typename Response>
grpc::Status ReadToTheEnd(grpc::ClientReader<Response>* reader) {
  Response response;
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

TEST_F(ServerTest, DrainEndsStreamsAndKeepsWhatWasAccepted) {
  KeepBeating(1, 0);
  const std::string id = Submit(Spec("demo"));
  while (Get(id).state() != Job::STATE_RUNNING) absl::SleepFor(absl::Milliseconds(5));
  StopBeating();
  v1::ReportLogRequest line;
  line.set_job_id(id);
  line.set_generation(1);
  line.set_data("one\n");
  ASSERT_OK(Call<v1::ReportLogResponse>(&v1::FleetService::Stub::ReportLog, agents_.get(), line)
                .status());
  Followers followers(people_.get(), id, kTimeout);
  // Each stream has begun and waits for more.
  v1::WatchJobResponse job_read;
  v1::WatchEventsResponse event_read;
  v1::WatchRecordsResponse record_read;
  v1::StreamLogsResponse log_read;
  ASSERT_TRUE(followers.job->Read(&job_read) && followers.events->Read(&event_read) &&
              followers.records->Read(&record_read) && followers.logs->Read(&log_read));
  const absl::Duration start = RealClock().Monotonic();
  server_->Drain(absl::Seconds(30));
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(5)) << "watchers do not hold it up";
  for (const grpc::Status& end :
       {ReadToTheEnd(followers.job.get()), ReadToTheEnd(followers.events.get()),
        ReadToTheEnd(followers.records.get()), ReadToTheEnd(followers.logs.get())}) {
    EXPECT_EQ(end.error_code(), grpc::UNAVAILABLE);
    EXPECT_THAT(end.error_message(), HasSubstr("shutting down"));
  }
  Restart();
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
}

// A proxy or tunnel at page_url sends that name or the address that it reaches as Host.
TEST_F(ServerTest, ThePageAnswersAtPageUrl) {
  metrics_address_ = "127.0.0.1:0";
  page_url_ = "https://nsa.example.org/";
  Restart();
  const auto ask = [this](const std::string& headers) {
    return HttpRead(HttpSend(server_->metrics_address(),
                             absl::StrCat("GET /api/v1/fleet HTTP/1.1\r\n", headers, "\r\n")));
  };
  for (const char* good : {"Host: nsa.example.org\r\n", "Host: NSA.example.org:8443\r\n",
                           "Host: nsa.example.org\r\nOrigin: https://nsa.example.org\r\n",
                           "Host: 127.0.0.1:9464\r\nOrigin: https://nsa.example.org\r\n"}) {
    EXPECT_THAT(ask(good), HasSubstr(" 200 ")) << good;
  }
  EXPECT_THAT(ask("Host: x.nsa.example.org\r\n"), HasSubstr(" 421 "));
  for (const char* origin : {"http://nsa.example.org", "https://nsa.example.org:8443",
                             "https://x.nsa.example.org", "https://evil.example", "null"}) {
    EXPECT_THAT(ask(absl::StrCat("Host: 127.0.0.1:9464\r\nOrigin: ", origin, "\r\n")),
                HasSubstr(" 403 "))
        << origin;
  }
}

}  // namespace
}  // namespace nsa::server
