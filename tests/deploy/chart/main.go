// Renders a Helm chart and checks the result against the types of Kubernetes' API.
//
//	chart CHART VALUES
//
// prints the rendered objects as JSON lines. A field that the API does not have, a wrong type or an unknown kind is an error.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// podMonitor has the fields that the chart uses of an object of the Prometheus operator.
type podMonitor struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector            meta.LabelSelector  `json:"selector"`
		PodMetricsEndpoints []map[string]string `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder, valuesFile string) error {
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	if err := chart.Validate(); err != nil {
		return err
	}
	values, err := chartutil.ReadValuesFile(valuesFile)
	if err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "lake", Namespace: "default", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for _, text := range strings.Split("\n"+files[name], "\n---") {
			if strings.TrimSpace(text) == "" {
				continue
			}
			if err := check(text); err != nil {
				return fmt.Errorf("%s: %w\n%s", name, err, text)
			}
		}
	}
	return nil
}

func check(text string) error {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		return err
	}
	var object any
	switch kind.APIVersion + " " + kind.Kind {
	case " ": // a comment alone
		return nil
	case "v1 ConfigMap":
		object = &core.ConfigMap{}
	case "v1 Service":
		object = &core.Service{}
	case "v1 ServiceAccount":
		object = &core.ServiceAccount{}
	case "apps/v1 StatefulSet":
		object = &apps.StatefulSet{}
	case "networking.k8s.io/v1 NetworkPolicy":
		object = &networking.NetworkPolicy{}
	case "apps/v1 Deployment":
		object = &apps.Deployment{}
	case "monitoring.coreos.com/v1 PodMonitor":
		object = &podMonitor{}
	default:
		return fmt.Errorf("%s of %s is not expected", kind.Kind, kind.APIVersion)
	}
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		return err
	}
	line, err := json.Marshal(object)
	if err == nil {
		fmt.Println(string(line))
	}
	return err
}
