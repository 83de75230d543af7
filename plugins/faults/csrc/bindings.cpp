// The Python module of fault injection.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "fault_pipeline.h"
#include "process_faults.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

template <typename Value>
void take(const py::dict& settings, const char* key, Value& value) {
  if (settings.contains(key)) {
    value = settings[key].cast<Value>();
  }
}

template <typename Value>
void take(const py::dict& settings, const char* key, Value& value,
          const std::vector<std::pair<const char*, Value>>& names) {
  if (!settings.contains(key)) {
    return;
  }
  const auto name = settings[key].cast<std::string>();
  for (const auto& [known, meant] : names) {
    if (name == known) {
      value = meant;
      return;
    }
  }
  throw py::value_error("a fault rule has the unknown " + std::string(key) + " '" + name + "'");
}

std::vector<std::pair<const char*, FaultKind>> kinds() {
  std::vector<std::pair<const char*, FaultKind>> kinds;
  for (int i = 0; i <= static_cast<int>(FaultKind::kClock); ++i) {
    kinds.emplace_back(kind_name(static_cast<FaultKind>(i)), static_cast<FaultKind>(i));
  }
  return kinds;
}

// The Python code has checked the settings; an error here is a bug in this package.
FaultRule rule_from(const py::dict& settings) {
  FaultRule rule;
  take(settings, "name", rule.name);
  rule.key = rule.name;
  take(settings, "key", rule.key);
  take(settings, "version", rule.version);
  take(settings, "what", rule.kind, kinds());
  take(settings, "messages", rule.types);
  take(settings, "senders", rule.senders);
  take(settings, "receivers", rule.receivers);
  take(settings, "functions", rule.functions);
  take(settings, "housekeeping", rule.housekeeping);
  take(settings, "one_way", rule.one_way);
  take(settings, "probability", rule.probability);
  take(settings, "after", rule.after);
  take(settings, "every", rule.every);
  take(settings, "first", rule.first);
  take(settings, "per", rule.per,
       {{"all", FaultRule::Per::kAll}, {"pair", FaultRule::Per::kPair}, {"payload", FaultRule::Per::kPayload}});
  take(settings, "budget", rule.budget);
  take(settings, "start", rule.start);
  take(settings, "end", rule.end);
  take(settings, "mark", rule.mark);
  take(settings, "shape", rule.shape,
       {{"fixed", FaultRule::Shape::kFixed},
        {"uniform", FaultRule::Shape::kUniform},
        {"normal", FaultRule::Shape::kNormal},
        {"exponential", FaultRule::Shape::kExponential}});
  take(settings, "seconds", rule.seconds);
  take(settings, "spread", rule.spread);
  take(settings, "others", rule.others);
  take(settings, "bound", rule.bound);
  take(settings, "rate", rule.rate);
  take(settings, "copies", rule.copies);
  take(settings, "exit_code", rule.exit_code);
  take(settings, "text", rule.text);
  take(settings, "element", rule.element);
  take(settings, "bit", rule.bit);
  take(settings, "memory", rule.memory);
  take(settings, "each", rule.each);
  take(settings, "by", rule.by);
  return rule;
}

std::vector<std::tuple<std::string, uint64_t, uint64_t>> counts_of(FaultPipeline& pipeline) {
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> counts;
  for (const FaultCount& count : pipeline.rules.counts()) {
    counts.emplace_back(count.rule, count.matched, count.fired);
  }
  return counts;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.def("store_delay", &store_delay);
  py::class_<FaultPipeline, std::shared_ptr<FaultPipeline>>(module, "FaultPipeline", py::module_local())
      .def(py::init<const std::string&>(), py::arg("worker"))
      .def("__rpc_interceptor__",
           [](const std::shared_ptr<FaultPipeline>& self) {
             auto* held = new std::shared_ptr<Interceptor>(self);
             return py::capsule(held, kInterceptorCapsule, [](PyObject* capsule) {
               delete static_cast<std::shared_ptr<Interceptor>*>(PyCapsule_GetPointer(capsule, kInterceptorCapsule));
             });
           })
      .def(
          "set_rules",
          [](FaultPipeline& self, const std::vector<py::dict>& rules, uint64_t seed,
             std::vector<std::string> housekeeping) {
            std::vector<FaultRule> parsed;
            for (const py::dict& rule : rules) {
              parsed.push_back(rule_from(rule));
            }
            self.rules.set(std::move(parsed), seed, std::move(housekeeping));
          },
          py::arg("rules"), py::arg("seed"), py::arg("housekeeping"))
      .def(
          "set_replay",
          [](FaultPipeline& self,
             const std::vector<
                 std::tuple<std::string, std::string, std::string, uint64_t, uint64_t, double,
                            std::vector<std::pair<size_t, double>>, std::vector<std::pair<size_t, double>>>>& entries,
             double stall_timeout) {
            std::vector<ReplayEntry> parsed;
            for (const auto& [receiver, type, function, digest, nth, at, faults, answer_faults] : entries) {
              parsed.push_back({receiver, type, function, digest, nth, at, faults, answer_faults});
            }
            self.rules.set_replay(std::move(parsed), stall_timeout);
          },
          py::arg("entries"), py::arg("stall_timeout"))
      .def(
          "set_mark", [](FaultPipeline& self, const std::string& mark, bool on) { self.rules.set_mark(mark, on); },
          py::arg("mark"), py::arg("on"))
      .def(
          "open_log",
          [](FaultPipeline& self, const std::string& path) {
            self.log.open(path);
            self.rules.watch(true);
          },
          py::arg("path"))
      .def("close_log",
           [](FaultPipeline& self) {
             self.rules.watch(false);
             self.log.close();
           })
      .def(
          "log_line",  // may wait for a disk, so it releases the GIL
          [](FaultPipeline& self, const std::string& members) { self.log.add(members); }, py::arg("members"),
          py::call_guard<py::gil_scoped_release>())
      .def("log_failure", [](FaultPipeline& self) { return self.log.failure(); })
      .def("fault_counts", &counts_of)
      .def("divergence", [](FaultPipeline& self) {
        const Divergence is = self.rules.divergence();
        return std::make_tuple(is.unrecorded, is.first_unrecorded, is.missing, is.first_missing);
      });
}

}  // namespace rpc_backends
