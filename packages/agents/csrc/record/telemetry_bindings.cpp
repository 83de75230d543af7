#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "record/names.h"
#include "record/telemetry.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

namespace py = pybind11;

// A span in Python: the two halves of the trace's id, the span's id, and whether it is sampled; None if there is none.
py::object for_python(const SpanContext& context) {
  if (context.sampling == SpanContext::Sampling::kNone) {
    return py::none();
  }
  return py::make_tuple(context.trace_high, context.trace_low, context.span,
                        context.sampling == SpanContext::Sampling::kSampled);
}

SpanContext from_python(const py::object& context) {
  if (context.is_none()) {
    return {};
  }
  const auto [high, low, span, sampled] = context.cast<std::tuple<uint64_t, uint64_t, uint64_t, bool>>();
  return {high, low, span, sampled ? SpanContext::Sampling::kSampled : SpanContext::Sampling::kDropped};
}

std::string method_of(uint32_t function, uint16_t type) {
  return function != 0 ? Names::instance().name_of(function) : type_name(type);
}

py::list spans_for_python(Telemetry& telemetry) {
  std::vector<Telemetry::EndedSpan> ended;
  {
    const py::gil_scoped_release unlocked;
    ended = telemetry.take_spans();
  }
  py::list list;
  for (const auto& [call, span, error] : ended) {
    py::dict span_dict;
    span_dict["context"] = for_python(span.context);
    span_dict["parent"] = span.parent;
    span_dict["incoming"] = call.incoming != 0;
    span_dict["method"] = method_of(call.function, call.type);
    span_dict["type"] = type_name(call.type);
    span_dict["peer_id"] = call.peer_id;
    span_dict["peer"] = Names::instance().name_of(call.peer);
    span_dict["begin_us"] = call.begin_us;
    span_dict["end_us"] = call.end_us;
    span_dict["bytes"] = call.bytes;
    span_dict["answer_bytes"] = call.answer_bytes;
    span_dict["state"] = name_of(call.state);
    span_dict["error"] = error;
    list.append(std::move(span_dict));
  }
  return list;
}

py::list series_for_python(const Telemetry& telemetry) {
  py::list list;
  for (const auto& [key, series] : telemetry.series()) {
    std::vector<uint64_t> buckets;
    for (const auto& bucket : series->buckets) {
      buckets.push_back(bucket);
    }
    py::dict series_dict;
    series_dict["incoming"] = key.incoming != 0;
    series_dict["method"] = method_of(key.function, key.type);
    series_dict["peer_id"] = key.peer_id;
    series_dict["peer"] = Names::instance().name_of(key.peer);
    series_dict["state"] = name_of(key.state);
    series_dict["buckets"] = buckets;
    series_dict["sum_us"] = series->sum_us.load();
    series_dict["bytes"] = series->bytes.load();
    series_dict["answer_bytes"] = series->answer_bytes.load();
    list.append(std::move(series_dict));
  }
  return list;
}

}  // namespace

void bind_telemetry(py::module_& module) {
  py::class_<Telemetry, std::shared_ptr<Telemetry>>(module, "Telemetry", py::module_local())
      .def(py::init<>())
      .def_property_readonly_static("bounds_us", [](const py::object& /*type*/) { return Telemetry::kBounds; })
      .def_property_readonly("lost_spans", &Telemetry::lost_spans)
      .def("sample", &Telemetry::sample, py::arg("ratio"))
      .def("take_spans", &spans_for_python)
      .def("series", &series_for_python);
  module.def("current_span", [] { return for_python(current_span()); });
  module.def("set_span", [](const py::object& context) { set_program_span(from_python(context)); }, py::arg("context"));
}

}  // namespace rpc_backends
